#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
} // namespace torch::optim

namespace weft::ddp {

/// Makes an optimizer of some parameters, e.g.
/// [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.1); }
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<at::Tensor>)>;

/// An optimizer for each of some parameters, which steps as soon as the
/// gradient of a backward was added and then drops it, so that gradients are
/// never all in memory. Given to DistributedDataParallel (see
/// register_fused_optim()) it steps once gradients are reduced.
/// Source: torch/distributed/optim/apply_optimizer_in_backward.py.
class OptimizerInBackward {
 public:
  /// `parameters` are leaves that require gradients.
  OptimizerInBackward(
      const std::vector<at::Tensor>& parameters,
      const OptimizerFactory& factory);
  OptimizerInBackward(const OptimizerInBackward&) = delete;
  OptimizerInBackward& operator=(const OptimizerInBackward&) = delete;
  ~OptimizerInBackward();

  /// Of each parameter, e.g. to set learning rates or to save their states.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers()
      const;
  const std::vector<at::Tensor>& parameters() const;

  /// Steps no more by itself.
  void stop_listening();
  /// Steps the optimizer of a parameter that has a gradient, and drops that.
  /// Does nothing for parameters of others.
  void step(const at::Tensor& parameter);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The same, by PyTorch's name.
std::shared_ptr<OptimizerInBackward> apply_optimizer_in_backward(
    const OptimizerFactory& factory,
    const std::vector<at::Tensor>& parameters);

} // namespace weft::ddp
