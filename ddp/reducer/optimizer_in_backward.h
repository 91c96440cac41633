#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
} // namespace torch::optim

namespace weft::ddp {

/// Creates an optimizer of some parameters, e.g. [](auto p) { return
/// std::make_unique<torch::optim::SGD>(p, 0.1); }
using OptimizerFactory = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<at::Tensor>)>;

/// One optimizer for each of some parameters, which steps as soon as a backward
/// has accumulated the gradient and then frees it, so that not all gradients
/// exist at the same time. DistributedDataParallel takes over those of its
/// module's parameters; they step after the gradients are reduced.
/// Source: torch/distributed/optim/apply_optimizer_in_backward.py.
class OptimizerInBackward {
 public:
  /// Throws: c10::ValueError unless `parameters` are leaves that require
  /// gradients, or if DistributedDataParallel already manages them (use
  /// register_fused_optim()).
  OptimizerInBackward(
      const std::vector<at::Tensor>& parameters,
      const OptimizerFactory& factory);
  /// Returns the object with a hook on `parameter`, or null.
  static std::shared_ptr<OptimizerInBackward> of(const at::Tensor& parameter);
  /// Creates the same object without hooks.
  static std::shared_ptr<OptimizerInBackward> make_without_hooks(
      const std::vector<at::Tensor>& parameters,
      const OptimizerFactory& factory);
  OptimizerInBackward(const OptimizerInBackward&) = delete;
  OptimizerInBackward& operator=(const OptimizerInBackward&) = delete;
  ~OptimizerInBackward();

  /// The optimizers by parameter, e.g. to set learning rates or to save their
  /// states.
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers()
      const;
  const std::vector<at::Tensor>& parameters() const;

  /// Disables the automatic step of a parameter. The caller steps it.
  void take_over(const at::Tensor& parameter);
  /// Steps the optimizer of a parameter that has a gradient, and frees the
  /// gradient. Does nothing for other parameters.
  void step(const at::Tensor& parameter);

 private:
  struct State;
  explicit OptimizerInBackward(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// Creates an OptimizerInBackward, under PyTorch's name.
std::shared_ptr<OptimizerInBackward> apply_optimizer_in_backward(
    const OptimizerFactory& factory,
    const std::vector<at::Tensor>& parameters);

} // namespace weft::ddp
