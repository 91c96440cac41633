#include "data_parallel/parameters/gradient_hooks.h"

#include <utility>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::data_parallel {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::impl::post_acc_grad_hooks;
using torch::autograd::impl::set_post_acc_grad_hooks;

using Callback = GradientHooks::Callback;

/// Runs in AccumulateGrad. A post hook of the node would make the engine copy
/// the node's inputs and outputs, which takes three times as long.
struct Hook final : PostAccumulateGradHook {
  void operator()(const at::Tensor& leaf) override {
    if (before) {
      (*before)(leaf);
    }
    if (const auto alive = callback.lock()) {
      (*alive)(index);
    }
  }

  std::weak_ptr<Callback> callback;
  size_t index = 0;
  HookOwner hook_owner = HookOwner::kReducer;
  std::weak_ptr<void> owner;
  /// The hook that the leaf had before. It is called first, because a leaf has
  /// only one such hook.
  std::unique_ptr<PostAccumulateGradHook> before;
};

std::unique_ptr<PostAccumulateGradHook> without_dead(
    std::unique_ptr<PostAccumulateGradHook> first) {
  std::vector<std::unique_ptr<PostAccumulateGradHook>> living;
  auto hook = std::move(first);
  while (auto* own = dynamic_cast<Hook*>(hook.get())) {
    auto before = std::move(own->before);
    if (!own->callback.expired()) {
      living.push_back(std::move(hook));
    }
    hook = std::move(before);
  }
  // The rest of the chain was not set by GradientHooks and is older.
  for (; !living.empty(); living.pop_back()) {
    static_cast<Hook&>(*living.back()).before = std::move(hook);
    hook = std::move(living.back());
  }
  return hook;
}

} // namespace

struct GradientHooks::State {
  std::shared_ptr<Callback> callback;
};

GradientHooks::GradientHooks(
    const std::vector<at::Tensor>& parameters,
    Callback callback,
    HookOwner hook_owner,
    std::weak_ptr<void> owner)
    : state_(std::make_unique<State>()) {
  state_->callback = std::make_shared<Callback>(std::move(callback));
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto hook = std::make_unique<Hook>();
    hook->callback = state_->callback;
    hook->index = i;
    hook->hook_owner = hook_owner;
    hook->owner = owner;
    hook->before = without_dead(std::move(post_acc_grad_hooks(parameters[i])));
    set_post_acc_grad_hooks(parameters[i], std::move(hook));
  }
}

std::vector<std::shared_ptr<void>> GradientHooks::owners_of(
    const at::Tensor& parameter,
    HookOwner hook_owner) {
  std::vector<std::shared_ptr<void>> owners;
  const auto* hook =
      dynamic_cast<const Hook*>(post_acc_grad_hooks(parameter).get());
  while (hook) {
    auto owner = hook->owner.lock();
    if (hook->hook_owner == hook_owner && owner && !hook->callback.expired()) {
      owners.push_back(std::move(owner));
    }
    hook = dynamic_cast<const Hook*>(hook->before.get());
  }
  return owners;
}

GradientHooks::~GradientHooks() = default;

} // namespace weft::data_parallel
