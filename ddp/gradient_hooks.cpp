#include "ddp/gradient_hooks.h"

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::ddp {
namespace {

// shared_ptr up to torch 2.13, intrusive_ptr later.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(
    std::declval<const at::Tensor&>()));

} // namespace

struct GradientHooks::State {
  std::shared_ptr<Callback> callback;
  // A leaf refers to its accumulator weakly: without these the hooks would go
  // with the first graph.
  std::vector<NodePointer> accumulators;
};

GradientHooks::GradientHooks(
    const std::vector<at::Tensor>& parameters,
    Callback callback)
    : state_(std::make_unique<State>()) {
  using torch::autograd::variable_list;
  state_->callback = std::make_shared<Callback>(std::move(callback));
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    // A graph can keep the node longer than this object lives.
    const std::weak_ptr<Callback> weak = state_->callback;
    node->add_post_hook(
        std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [weak, i](const variable_list& outputs, const variable_list&) {
              if (const auto alive = weak.lock()) {
                (*alive)(i);
              }
              return outputs;
            }));
    state_->accumulators.push_back(std::move(node));
  }
}

GradientHooks::~GradientHooks() = default;

} // namespace weft::ddp
