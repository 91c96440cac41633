#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "tests/ddp/harness/model.h"

namespace weft::test {

/// How long a rank sleeps now and then.
struct HarnessDelays {
  /// Ranks get others by their seeds.
  uint64_t seed = 0;
  double max_ms = 1.0;
};

/// Sleeps random times. One rank's.
class RandomSleeper {
 public:
  explicit RandomSleeper(const HarnessDelays& delays)
      : generator_(delays.seed), milliseconds_(0, delays.max_ms) {}
  /// Returns how long, in milliseconds.
  double sleep();

 private:
  std::mt19937_64 generator_;
  std::uniform_real_distribution<double> milliseconds_;
};

/// Any of the others, on a rank that is late now and then: after the loss, and
/// before gradients are accumulated, so before they are reduced. What depends
/// on the order in which ranks get somewhere fails under it.
/// Source: torch/testing/_internal/common_fsdp.py.
struct ModuleWithDelay : HarnessModel {
  ModuleWithDelay(
      std::shared_ptr<HarnessModel> module,
      const HarnessDelays& delays);

  at::Tensor forward(const Inputs& inputs) override;
  bool treats_rows_alone() const override;
  void run_backward(const at::Tensor& loss) override;
  void wrap(
      const mesh::DeviceMesh& dp,
      const ddp::DistributedDataParallelOptions& options) override;
  std::set<std::string> wrapped_names() const override;
  std::vector<ddp::ParameterGroup> parameter_groups() const override;
  std::string name_in_twin(const std::string& name) const override;

  Inputs make_input(int64_t rank, int64_t step, int64_t rows) const override;
  at::Tensor make_loss(const Inputs& inputs, const at::Tensor& output) override;

  std::shared_ptr<HarnessModel> module;

 private:
  std::shared_ptr<RandomSleeper> sleeper_;
};

/// A comm hook that is late before it runs `hook`.
std::shared_ptr<data_parallel::CommHook> delayed_hook(
    std::shared_ptr<data_parallel::CommHook> hook,
    const HarnessDelays& delays);

} // namespace weft::test
