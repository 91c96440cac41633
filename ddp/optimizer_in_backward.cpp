#include "ddp/optimizer_in_backward.h"

#include <unordered_map>

#include <torch/torch.h>

#include "ddp/gradient_hooks.h"
#include "mesh/error.h"

namespace weft::ddp {

struct OptimizerInBackward::State {
  std::vector<at::Tensor> parameters;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  std::unordered_map<const c10::TensorImpl*, size_t> index;
  std::unique_ptr<GradientHooks> hooks;
};

OptimizerInBackward::OptimizerInBackward(
    const std::vector<at::Tensor>& parameters,
    const OptimizerFactory& factory)
    : state_(std::make_unique<State>()) {
  state_->parameters = parameters;
  for (const auto& parameter : parameters) {
    WEFT_CHECK(
        parameter.is_leaf() && parameter.requires_grad(),
        "apply_optimizer_in_backward",
        mesh::ErrorContext{"no mesh"},
        "parameter ",
        state_->optimizers.size(),
        " of ",
        parameters.size(),
        " is no leaf that requires a gradient. Leave frozen parameters out.");
    state_->index.emplace(
        parameter.unsafeGetTensorImpl(), state_->optimizers.size());
    state_->optimizers.push_back(factory({parameter}));
  }
  state_->hooks = std::make_unique<GradientHooks>(
      parameters, [this](size_t i) { step(state_->parameters[i]); });
}

OptimizerInBackward::~OptimizerInBackward() = default;

const std::vector<std::shared_ptr<torch::optim::Optimizer>>&
OptimizerInBackward::optimizers() const {
  return state_->optimizers;
}

const std::vector<at::Tensor>& OptimizerInBackward::parameters() const {
  return state_->parameters;
}

void OptimizerInBackward::stop_listening() {
  state_->hooks.reset();
}

void OptimizerInBackward::step(const at::Tensor& parameter) {
  const auto found = state_->index.find(parameter.unsafeGetTensorImpl());
  if (found != state_->index.end() && parameter.grad().defined()) {
    state_->optimizers[found->second]->step();
    parameter.mutable_grad() = at::Tensor();
  }
}

std::shared_ptr<OptimizerInBackward> apply_optimizer_in_backward(
    const OptimizerFactory& factory,
    const std::vector<at::Tensor>& parameters) {
  return std::make_shared<OptimizerInBackward>(parameters, factory);
}

} // namespace weft::ddp
