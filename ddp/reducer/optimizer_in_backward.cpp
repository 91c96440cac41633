#include "ddp/reducer/optimizer_in_backward.h"

#include <unordered_map>

#include <torch/torch.h>

#include "data_parallel/parameters/gradient_hooks.h"
#include "mesh/error/error.h"

namespace weft::ddp {

struct OptimizerInBackward::State {
  State(
      const std::vector<at::Tensor>& parameters,
      const OptimizerFactory& factory);
  void step(const at::Tensor& parameter);

  std::vector<at::Tensor> parameters;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers;
  std::unordered_map<const c10::TensorImpl*, size_t> index;
  /// True for parameters that the reducer steps instead of the hook.
  std::vector<bool> is_taken;
  std::unique_ptr<data_parallel::GradientHooks> hooks;
};

OptimizerInBackward::State::State(
    const std::vector<at::Tensor>& all,
    const OptimizerFactory& factory)
    : parameters(all) {
  for (const auto& parameter : all) {
    WEFT_CHECK(
        parameter.is_leaf() && parameter.requires_grad(),
        "apply_optimizer_in_backward",
        mesh::ErrorContext{"parameters"},
        "parameter ",
        optimizers.size(),
        " of ",
        all.size(),
        " is not a leaf that requires a gradient. Leave frozen parameters "
        "out.");
    index.emplace(parameter.unsafeGetTensorImpl(), optimizers.size());
    optimizers.push_back(factory({parameter}));
  }
  is_taken.resize(all.size(), false);
}

void OptimizerInBackward::State::step(const at::Tensor& parameter) {
  const auto found = index.find(parameter.unsafeGetTensorImpl());
  if (found != index.end() && parameter.grad().defined()) {
    optimizers[found->second]->step();
    parameter.mutable_grad() = at::Tensor();
  }
}

OptimizerInBackward::OptimizerInBackward(std::shared_ptr<State> state)
    : state_(std::move(state)) {}

OptimizerInBackward::OptimizerInBackward(
    const std::vector<at::Tensor>& parameters,
    const OptimizerFactory& factory)
    : state_(std::make_shared<State>(parameters, factory)) {
  for (const auto& parameter : parameters) {
    WEFT_CHECK(
        data_parallel::GradientHooks::owners_of(
            parameter, data_parallel::HookOwner::kReducer)
            .empty(),
        "apply_optimizer_in_backward",
        mesh::ErrorContext{"parameters"},
        "a parameter of sizes ",
        parameter.sizes(),
        " belongs to a module that DistributedDataParallel wraps, so its "
        "optimizer would step before the gradient is reduced. Use "
        "register_fused_optim().");
  }
  auto* state = state_.get();
  state_->hooks = std::make_unique<data_parallel::GradientHooks>(
      parameters,
      [state](size_t i) {
        if (!state->is_taken[i]) {
          state->step(state->parameters[i]);
        }
      },
      data_parallel::HookOwner::kOptimizer,
      state_);
}

std::shared_ptr<OptimizerInBackward> OptimizerInBackward::make_without_hooks(
    const std::vector<at::Tensor>& parameters,
    const OptimizerFactory& factory) {
  return std::shared_ptr<OptimizerInBackward>(
      new OptimizerInBackward(std::make_shared<State>(parameters, factory)));
}

std::shared_ptr<OptimizerInBackward> OptimizerInBackward::of(
    const at::Tensor& parameter) {
  const auto owners = data_parallel::GradientHooks::owners_of(
      parameter, data_parallel::HookOwner::kOptimizer);
  return owners.empty()
             ? nullptr
             : std::shared_ptr<OptimizerInBackward>(new OptimizerInBackward(
                   std::static_pointer_cast<State>(owners.front())));
}

OptimizerInBackward::~OptimizerInBackward() = default;

const std::vector<std::shared_ptr<torch::optim::Optimizer>>&
OptimizerInBackward::optimizers() const {
  return state_->optimizers;
}

const std::vector<at::Tensor>& OptimizerInBackward::parameters() const {
  return state_->parameters;
}

void OptimizerInBackward::take_over(const at::Tensor& parameter) {
  const auto found = state_->index.find(parameter.unsafeGetTensorImpl());
  if (found != state_->index.end()) {
    state_->is_taken[found->second] = true;
  }
}

void OptimizerInBackward::step(const at::Tensor& parameter) {
  state_->step(parameter);
}

std::shared_ptr<OptimizerInBackward> apply_optimizer_in_backward(
    const OptimizerFactory& factory,
    const std::vector<at::Tensor>& parameters) {
  return std::make_shared<OptimizerInBackward>(parameters, factory);
}

} // namespace weft::ddp
