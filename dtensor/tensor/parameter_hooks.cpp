#include "dtensor/tensor/parameter_hooks.h"

#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::dtensor {
namespace {

// A hook of the node and not of the tensor: a write to a view gives the view
// another node, and hooks of the tensor would be lost with the previous one.
struct UseInBackward final : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& grads) override {
    for (const auto& each : hooks) {
      each->before_use(/*is_forward=*/false);
    }
    return grads;
  }

  std::vector<std::shared_ptr<ParameterHooks>> hooks;
};

} // namespace

void use_in_backward(
    const at::Tensor& output,
    c10::ArrayRef<const at::Tensor*> parameters) {
  const auto& node = output.grad_fn();
  if (!node) {
    return;
  }
  auto use = std::make_unique<UseInBackward>();
  for (const auto* parameter : parameters) {
    const auto* impl = parameter ? dtensor_impl(*parameter) : nullptr;
    if (impl && impl->parameter_hooks) {
      use->hooks.push_back(impl->parameter_hooks);
    }
  }
  if (!use->hooks.empty()) {
    node->add_pre_hook(std::move(use));
  }
}

} // namespace weft::dtensor
