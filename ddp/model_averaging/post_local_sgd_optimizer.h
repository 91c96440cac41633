#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

#include "ddp/model_averaging/averagers.h"
#include "dtensor/nn/state_dict.h"

namespace weft::ddp {

/// An optimizer that averages the parameters after its steps as `averager`
/// decides. With post_localSGD_hook, whose start_localSGD_iter is the
/// averager's warmup_steps, this is post-local SGD.
/// Source: torch/distributed/optim/post_localSGD_optimizer.py; Lin et al.,
/// https://arxiv.org/abs/1808.07217.
class PostLocalSGDOptimizer {
 public:
  /// Throws: c10::ValueError if an argument is null.
  PostLocalSGDOptimizer(
      std::shared_ptr<torch::optim::Optimizer> optim,
      std::shared_ptr<ModelAverager> averager);

  /// Steps the optimizer and averages.
  /// Collective: all replicas.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  /// Clears the gradients, like torch::optim::Optimizer::zero_grad().
  void zero_grad(bool set_to_none = true);
  /// Adds a group to the optimizer.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// The groups of the optimizer.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();

  /// The optimizer that step() calls.
  torch::optim::Optimizer& optim() { return *optim_; }
  /// The averager that step() calls.
  ModelAverager& averager() { return *averager_; }

  /// Returns optimizer_state_dict() of the optimizer, and the averager's
  /// "step".
  dtensor::StateDict state_dict(
      const torch::nn::Module& module,
      const mesh::DeviceMesh& mesh);
  /// Without "step" the averager starts at 0, with a warning.
  /// Throws: c10::ValueError naming a key that is missing or does not match.
  void load_state_dict(
      const torch::nn::Module& module,
      const dtensor::StateDict& state);

 private:
  std::shared_ptr<torch::optim::Optimizer> optim_;
  std::shared_ptr<ModelAverager> averager_;
};

} // namespace weft::ddp
