#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "tests/ddp/options/option_cases.h"
#include "tests/ddp/options/option_models.h"

namespace weft::test {

/// The state of a rank after kOptionSteps.
struct OptionTrace {
  /// The loss of each step on this rank's rows.
  std::vector<double> losses;
  /// Full tensors, in double. Undefined: the parameter has no gradient.
  NamedTensors parameters;
  NamedTensors gradients;
  NamedTensors buffers;
};

constexpr int64_t kOptionSteps = 4;

/// What all train with.
torch::optim::SGDOptions option_sgd();

/// Replica `rank`'s model as it starts, on one rank.
std::shared_ptr<OptionModel> make_replica(
    const OptionSetup& setup,
    int64_t rank);
/// Creates the model on the tp dim of `mesh`, whose other dim is dp.
/// Collective: all ranks of mesh["tp"].
std::shared_ptr<OptionModel> make_replica(
    const OptionSetup& setup,
    const mesh::DeviceMesh& mesh);

/// Returns the model of a replica on one rank: a copy with parameters in low
/// precision, or `model` itself without mixed precision.
std::shared_ptr<OptionModel> make_low_replica(
    const OptionSetup& setup,
    int64_t rank,
    const std::shared_ptr<OptionModel>& model);
/// Brings the values of `model` to its copy, without gradients.
void load_parameters(const OptionModel& model, OptionModel& low);

OptionTrace trace_of(const OptionModel& model, std::vector<double> losses);
/// Returns full tensors in double.
NamedTensors buffers_of(const OptionModel& model);

/// Trains with DistributedDataParallel.
/// Collective: all ranks of `mesh`, whose dims are dp and tp.
OptionTrace train_with_ddp(
    const OptionSetup& setup,
    const mesh::DeviceMesh& mesh);

/// One rank computes what each of `replicas` should have, by hand.
std::vector<OptionTrace> train_replicas_by_hand(
    const OptionSetup& setup,
    int64_t replicas);

/// One rank trains on all replicas' rows at once; only for models that treat
/// rows alone.
OptionTrace train_on_whole_batch(const OptionSetup& setup, int64_t replicas);

/// What PyTorch's DDP computed. oracle/ddp_options.py says how.
struct PyTorchResult {
  /// One of each rank; empty if there is an error or a note.
  std::vector<OptionTrace> traces;
  std::string error;
  /// Why the result is not what one rank computes, if it is not.
  std::string note;
};

/// By case; nothing for a case that was not stored.
std::optional<PyTorchResult> pytorch_result(
    const std::string& name,
    int64_t replicas);
std::vector<std::string> pytorch_cases();

/// Tensors by name, up to `tolerance`.
void expect_traces_close(
    const OptionTrace& actual,
    const OptionTrace& expected,
    double tolerance,
    const std::string& what);

} // namespace weft::test
