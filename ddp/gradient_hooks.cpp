#include "ddp/gradient_hooks.h"

#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::ddp {
namespace {

using torch::autograd::PostAccumulateGradHook;
using torch::autograd::impl::post_acc_grad_hooks;
using torch::autograd::impl::set_post_acc_grad_hooks;

using Callback = GradientHooks::Callback;

/// Runs in the accumulation itself. A hook behind the node would have the
/// engine copy the node's inputs and outputs: three times the price.
class Hook final : public PostAccumulateGradHook {
 public:
  Hook(
      std::weak_ptr<Callback> callback,
      size_t index,
      std::unique_ptr<PostAccumulateGradHook> before)
      : callback_(std::move(callback)),
        index_(index),
        before_(std::move(before)) {}

  void operator()(const at::Tensor& leaf) override {
    if (before_) {
      (*before_)(leaf);
    }
    if (const auto alive = callback_.lock()) {
      (*alive)(index_);
    }
  }

  bool is_alive() const { return !callback_.expired(); }
  std::unique_ptr<PostAccumulateGradHook> take_before() {
    return std::move(before_);
  }

 private:
  std::weak_ptr<Callback> callback_;
  size_t index_;
  /// A leaf has one such hook: what it had before is called first.
  std::unique_ptr<PostAccumulateGradHook> before_;
};

/// What the leaf has, but those of GradientHooks that are gone.
std::unique_ptr<PostAccumulateGradHook> take_hook(const at::Tensor& leaf) {
  auto hook = std::move(post_acc_grad_hooks(leaf));
  while (auto* own = dynamic_cast<Hook*>(hook.get())) {
    if (own->is_alive()) {
      break;
    }
    hook = own->take_before();
  }
  return hook;
}

} // namespace

struct GradientHooks::State {
  std::shared_ptr<Callback> callback;
};

GradientHooks::GradientHooks(
    const std::vector<at::Tensor>& parameters,
    Callback callback)
    : state_(std::make_unique<State>()) {
  state_->callback = std::make_shared<Callback>(std::move(callback));
  for (size_t i = 0; i < parameters.size(); ++i) {
    set_post_acc_grad_hooks(
        parameters[i],
        std::make_unique<Hook>(state_->callback, i, take_hook(parameters[i])));
  }
}

GradientHooks::~GradientHooks() = default;

} // namespace weft::ddp
