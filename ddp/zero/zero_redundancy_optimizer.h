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

struct ZeroRedundancyOptimizerOptions {
  ZeroPartition partition = ZeroPartition::kWholeParameters;
  /// Gather into the parameters' own memory, without copies: whole parameters
  /// become views of one buffer a bucket; of evenly split ones each is a
  /// message.
  bool parameters_as_bucket_view = false;
  /// How many MiB of parameters are updated and then gathered together, while
  /// the next ones are updated.
  double bucket_cap_mb = 25;
  /// step() returns while parameters are still being gathered, in their order:
  /// see wait_for_parameters(), also for what mixed_precision of
  /// DistributedDataParallel needs. Not within a Join.
  bool overlap_with_forward = false;
};

/// An optimizer whose state and work are divided over the replicas: each
/// updates its part of the parameters, and the parts are gathered. With
/// optimizers that treat parameters one by one, values are those of the plain
/// optimizer. Groups and their options, schedulers and zero_grad() are as with
/// any other; groups added later are divided by themselves.
/// Source: torch/distributed/optim/zero_redundancy_optimizer.py; Rajbhandari
/// et al., https://arxiv.org/abs/1910.02054 (stage 1).
class ZeroRedundancyOptimizer : public torch::optim::Optimizer,
                                public Joinable,
                                public dtensor::ShardedStateOptimizer {
 public:
  /// `dp` has one dim: the replicas, whose parameters and gradients are equal.
  /// Collective: all ranks of `dp` with the same groups; blocks.
  /// Throws: c10::ValueError for a mesh of several dims, no parameters, one
  /// that is no leaf, comes twice, has no values yet, lies on `dp` or has an
  /// optimizer in backward, an optimizer that couples parameters (LBFGS);
  /// mesh::DisagreementError on all ranks if theirs differ.
  ZeroRedundancyOptimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      ZeroOptimizerFactory factory,
      const mesh::DeviceMesh& dp,
      ZeroRedundancyOptimizerOptions options = {});
  ~ZeroRedundancyOptimizer() override;

  /// Calls `closure`, if given, then before_update()'s function; updates this
  /// rank's parts and gathers the others'. A parameter without a gradient is
  /// left alone.
  /// Collective: all replicas; blocks, but with overlap_with_forward.
  /// Throws: c10::ValueError for a sparse gradient of a parameter that is cut,
  /// and what the constructor throws for groups that were added.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// What is to be done with gradients before each update, e.g. clipping: also
  /// on ranks that have run out of inputs in a Join.
  void before_update(std::function<void()> function);

  /// Waits for what step() left under way. To be called, with
  /// overlap_with_forward, before anybody reads parameters; step() and
  /// state_dict() do so themselves.
  void wait_for_parameters();
  /// The same for the parameters of one module and those below it.
  void wait_for_parameters(const torch::nn::Module& module);
  /// Has dtensor::call(module, ...), and so forward() of a
  /// DistributedDataParallel around it, wait for the module's parameters. On a
  /// model's blocks, called so one after the other, each waits for its own.
  /// Under mixed_precision DistributedDataParallel casts parameters before
  /// that: call wait_for_parameters() before its forward.
  void wait_before_forward(torch::nn::Module& module);

  /// What the plain optimizer has in dtensor::optimizer_state_dict(): the same
  /// keys, sizes and dtypes. Tensors are DTensors on joint_mesh(module, dp) and
  /// share memory with this rank's part of the state.
  /// Collective: all replicas; blocks.
  /// Throws: as optimizer_state_dict(), on all ranks.
  dtensor::StateDict state_dict(
      const torch::nn::Module& module,
      const dtensor::StateDict* to_be_loaded = nullptr) override;
  /// The way back; takes also tensors placed otherwise, e.g. a plain
  /// optimizer's, and plain ones of the whole's sizes.
  /// Collective: all ranks of the mesh; blocks.
  /// Throws: c10::ValueError naming a key that is missing or does not fit.
  void load_state_dict(
      const torch::nn::Module& module,
      const dtensor::StateDict& state) override;
  /// state_dict() in whole plain tensors on the rank at `to` of dp and at the
  /// origin of other mesh dims; nothing on others.
  /// Collective: all ranks of the mesh; blocks.
  dtensor::StateDict consolidate_state_dict(
      const torch::nn::Module& module,
      int64_t to = 0);

  /// c10::NotImplementedError: state_dict() is for the checkpoint.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Its main hook updates and gathers as step() does.
  std::shared_ptr<JoinHook> join_hook(const JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;

  const mesh::DeviceMesh& mesh() const;
  /// Who has the state of each parameter, in the order of the groups.
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

/// One of torch's optimizers, or any that is made of groups and options, with
/// its state divided over `dp`:
/// make_zero<torch::optim::AdamW>(model->parameters(), AdamWOptions(1e-3), dp)
/// Collective: all ranks of `dp`; blocks. Throws: as the constructor.
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
template <class Optimizer, class Options>
std::unique_ptr<ZeroRedundancyOptimizer> make_zero(
    std::vector<at::Tensor> parameters,
    Options options,
    const mesh::DeviceMesh& dp,
    ZeroRedundancyOptimizerOptions zero_options = {}) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(parameters));
  return make_zero<Optimizer>(
      std::move(groups), std::move(options), dp, zero_options);
}

} // namespace weft::ddp
