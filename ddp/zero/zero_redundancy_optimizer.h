#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "data_parallel/join/joinable.h"
#include "ddp/zero/partition.h"
#include "ddp/zero/zero_bucket.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::ddp {

class ZeroStateAccess;

/// The options of a ZeroRedundancyOptimizer.
struct ZeroRedundancyOptimizerOptions {
  /// The unit of what a replica owns: parameters, or equal parts of each.
  ZeroPartition partition = ZeroPartition::kWholeParameters;
  /// Gathers into the parameters' own memory without copies: parameters with
  /// one owner become views of one buffer per bucket; evenly split ones are
  /// sent as one message each.
  bool parameters_as_bucket_view = false;
  /// The MiB of parameters that are updated and then gathered together, while
  /// the next ones are updated.
  double bucket_cap_mb = 25;
  /// Makes step() return while parameters are still being gathered, in their
  /// order: see wait_for_parameters(), also for mixed_precision of
  /// DistributedDataParallel. Not supported in a Join.
  bool overlap_with_forward = false;
};

/// An optimizer whose state and work are sharded over the replicas: each
/// updates its part of the parameters, and the parts are gathered. With
/// optimizers that handle parameters separately the values are those of the
/// plain optimizer. Groups and their options, schedulers and zero_grad() work
/// as usual; groups that are added later are divided separately.
/// Source: torch/distributed/optim/zero_redundancy_optimizer.py; Rajbhandari et
/// al., https://arxiv.org/abs/1910.02054 (stage 1).
class ZeroRedundancyOptimizer : public torch::optim::Optimizer,
                                public data_parallel::Joinable,
                                public dtensor::ShardedStateOptimizer {
 public:
  /// `dp` is the 1-D mesh of the replicas, whose parameters and gradients are
  /// equal.
  /// Collective: all ranks of `dp` with the same groups; blocks.
  /// Throws: c10::ValueError for a mesh of several dims, no parameters, a
  /// parameter that is not a leaf, is repeated, has no values yet, is on `dp`
  /// or has an optimizer in backward, or an optimizer that couples parameters
  /// (LBFGS); mesh::DisagreementError on all ranks if their arguments differ.
  ZeroRedundancyOptimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      ZeroOptimizerFactory factory,
      const mesh::DeviceMesh& dp,
      ZeroRedundancyOptimizerOptions options = {});
  ~ZeroRedundancyOptimizer() override;

  /// Calls `closure`, if given, then the function that before_update() set.
  /// Updates this rank's parts and gathers the others. Skips parameters without
  /// a gradient.
  /// Collective: all replicas; blocks, except with overlap_with_forward.
  /// Throws: c10::ValueError for a sparse gradient of a sharded parameter; for
  /// an added parameter group, like the constructor.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Sets a function that runs before each update, e.g. gradient clipping, also
  /// on ranks that have run out of inputs in a Join.
  void before_update(std::function<void()> function);

  /// Waits for the gathers that step() started. With overlap_with_forward it
  /// must be called before parameters are read; step() and state_dict() call it
  /// themselves.
  void wait_for_parameters();
  /// Like wait_for_parameters(), for the parameters of a module and its
  /// submodules.
  void wait_for_parameters(const torch::nn::Module& module);
  /// Makes dtensor::call(module, ...), and so forward() of a
  /// DistributedDataParallel around it, wait for the module's parameters. If
  /// called for each of a model's blocks, each waits for its own. With
  /// mixed_precision DistributedDataParallel casts parameters earlier: call
  /// wait_for_parameters() before its forward.
  void wait_before_forward(torch::nn::Module& module);

  /// Returns the keys, sizes and dtypes of the plain optimizer's
  /// dtensor::optimizer_state_dict(). Tensors are DTensors on
  /// joint_mesh(module, dp) and share memory with this rank's state.
  /// Collective: all replicas; blocks.
  /// Throws: like optimizer_state_dict(), on all ranks.
  dtensor::StateDict state_dict(
      const torch::nn::Module& module,
      const dtensor::StateDict* to_be_loaded = nullptr) override;
  /// Loads a state. Its tensors may be plain full tensors, or DTensors with
  /// other placements, e.g. those of a plain optimizer.
  /// Collective: all ranks of the mesh; blocks.
  /// Throws: c10::ValueError naming a key that is missing or does not match.
  void load_state_dict(
      const torch::nn::Module& module,
      const dtensor::StateDict& state) override;
  /// Returns state_dict() as plain full tensors on the rank `to` of dp at the
  /// origin of the other mesh dims, and nothing on the other ranks.
  /// Collective: all ranks of the mesh; blocks.
  dtensor::StateDict consolidate_state_dict(
      const torch::nn::Module& module,
      int64_t to = 0);

  /// Throws: c10::NotImplementedError. Use state_dict() for checkpoints.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Throws: c10::NotImplementedError. Use load_state_dict() for checkpoints.
  void load(torch::serialize::InputArchive& archive) override;

  /// Creates the hook for Join. Its main hook updates and gathers like step().
  std::shared_ptr<data_parallel::JoinHook> join_hook(
      const data_parallel::JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;

  /// The mesh of the replicas.
  const mesh::DeviceMesh& mesh() const;
  /// Returns which replica has the state of each parameter, in group order.
  std::vector<std::pair<at::Tensor, ZeroPart>> parts() const;

 private:
  struct State;
  class Hook;

  void take_new_parameters();
  void make_buckets(std::vector<ZeroEntry> entries);
  void update();
  ZeroStateAccess state_access(
      const torch::nn::Module& module,
      const dtensor::StateDict* to_be_loaded = nullptr);

  std::shared_ptr<State> zero_;
};

/// Creates one of torch's optimizers, or any other with groups and options,
/// with its state sharded over `dp`:
/// make_zero<torch::optim::AdamW>(model->parameters(), AdamWOptions(1e-3), dp).
/// Collective: all ranks of `dp`; blocks.
/// Throws: like the constructor.
template <class Optimizer, class Options>
std::unique_ptr<ZeroRedundancyOptimizer> make_zero(
    std::vector<torch::optim::OptimizerParamGroup> groups,
    Options options,
    const mesh::DeviceMesh& dp,
    ZeroRedundancyOptimizerOptions zero_options = {}) {
  return std::make_unique<ZeroRedundancyOptimizer>(
      std::move(groups),
      [options = std::move(options)](
          std::vector<torch::optim::OptimizerParamGroup> some)
          -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<Optimizer>(std::move(some), options);
      },
      dp,
      zero_options);
}
/// Returns the tensors without those that are another one's handle, such as a
/// tied weight, which torch::nn::Module::parameters() lists once per module.
std::vector<at::Tensor> without_repeats(
    const std::vector<at::Tensor>& parameters);

/// Like make_zero() above, with one parameter group. A parameter that is listed
/// twice counts once.
template <class Optimizer, class Options>
std::unique_ptr<ZeroRedundancyOptimizer> make_zero(
    const std::vector<at::Tensor>& parameters,
    Options options,
    const mesh::DeviceMesh& dp,
    ZeroRedundancyOptimizerOptions zero_options = {}) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(without_repeats(parameters));
  return make_zero<Optimizer>(
      std::move(groups), std::move(options), dp, zero_options);
}

} // namespace weft::ddp
