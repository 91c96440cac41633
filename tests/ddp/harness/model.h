#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "ddp/reducer/options.h"
#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::test {

/// What tests of training on several ranks train: each model makes its own
/// inputs and its own loss. Everything is in double, with values that depend on
/// names and places alone. Legend: B batch, T sequence, D dim.
/// Source: torch/testing/_internal/common_fsdp.py, FSDPTestModel.
struct HarnessModel : torch::nn::Module {
  using Inputs = std::vector<at::Tensor>;

  /// Rows of replica `rank` in a step, the same on all ranks that ask for them;
  /// on the mesh that the model lies on. Rows are dim 0 of each input.
  Inputs get_input(int64_t rank, int64_t step, int64_t rows = 2) const;
  virtual at::Tensor forward(const Inputs& inputs) = 0;
  /// The mean over rows, on no mesh.
  /// Collective: all ranks of the mesh that the model lies on.
  at::Tensor get_loss(const Inputs& inputs, const at::Tensor& output);
  virtual void run_backward(const at::Tensor& loss) { loss.backward(); }

  /// Whether what a row becomes depends on that row alone, or on all replicas'
  /// rows: one rank on the whole batch then does what the replicas do together.
  virtual bool treats_rows_alone() const { return true; }

  /// Wraps parts of the model, whose gradients are then reduced in it.
  /// Collective: all replicas.
  virtual void wrap(
      [[maybe_unused]] const mesh::DeviceMesh& dp,
      [[maybe_unused]] const ddp::DistributedDataParallelOptions& options) {}
  /// Names of parameters that wrap() cares for.
  virtual std::set<std::string> wrapped_names() const { return {}; }
  /// Parameters that not every replica has.
  virtual std::vector<ddp::ParameterGroup> parameter_groups() const {
    return {};
  }
  /// The name of a parameter in the only twin.
  virtual std::string name_in_twin(const std::string& name) const {
    return name;
  }

  /// How a parameter lies on the ranks of tensor parallelism.
  virtual dtensor::Placement placement_of(
      [[maybe_unused]] const std::string& name) const {
    return dtensor::Replicate();
  }
  /// What tells a parameter's values from those of the others; `place`: among
  /// the model's parameters.
  virtual double phase_of(
      [[maybe_unused]] const std::string& name,
      int64_t place) const {
    return 0.3 + static_cast<double>(place);
  }

  /// The ranks of tensor parallelism, if there are any.
  std::optional<mesh::DeviceMesh> tp;

  virtual Inputs make_input(int64_t rank, int64_t step, int64_t rows) const = 0;
  virtual at::Tensor make_loss(
      const Inputs& inputs,
      const at::Tensor& output) = 0;
};

using NamedHarnessTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A tied parameter once, under its first name.
NamedHarnessTensors harness_parameters(const torch::nn::Module& model);
/// The parameters of an optimizer.
std::vector<at::Tensor> harness_tensors(const torch::nn::Module& model);

/// Gives all parameters their values.
void fill_harness(HarnessModel& model);

/// Wave numbers that differ from rank to rank and step to step.
at::Tensor harness_wave(at::IntArrayRef sizes, int64_t rank, int64_t step);

} // namespace weft::test
