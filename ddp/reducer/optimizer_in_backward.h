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
/// never all in memory. DistributedDataParallel takes over those that the
/// parameters of its module have; they step once gradients are reduced.
/// Source: torch/distributed/optim/apply_optimizer_in_backward.py.
class OptimizerInBackward {
 public:
  /// Throws: c10::ValueError unless `parameters` are leaves that require
  /// gradients, and if DistributedDataParallel has them already: that would be
  /// register_fused_optim().
  OptimizerInBackward(
      const std::vector<at::Tensor>& parameters,
      const OptimizerFactory& factory);
  /// Those that listen to `parameter` now; null if none do.
  static std::shared_ptr<OptimizerInBackward> of(const at::Tensor& parameter);
  /// The same that do not step by themselves.
  static std::shared_ptr<OptimizerInBackward> make_without_hooks(
      const std::vector<at::Tensor>& parameters,
      const OptimizerFactory& factory);
  OptimizerInBackward(const OptimizerInBackward&) = delete;
  OptimizerInBackward& operator=(const OptimizerInBackward&) = delete;
  ~OptimizerInBackward();

  /// Of each parameter, e.g. to set learning rates or to save their states.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers()
      const;
  const std::vector<at::Tensor>& parameters() const;

  /// Steps no more by itself for a parameter: somebody else says when.
  void take_over(const at::Tensor& parameter);
  /// Steps the optimizer of a parameter that has a gradient, and drops that.
  /// Does nothing for parameters of others.
  void step(const at::Tensor& parameter);

 private:
  struct State;
  explicit OptimizerInBackward(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// The same, by PyTorch's name.
std::shared_ptr<OptimizerInBackward> apply_optimizer_in_backward(
    const OptimizerFactory& factory,
    const std::vector<at::Tensor>& parameters);

} // namespace weft::ddp
