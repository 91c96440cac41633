#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

using Stack = torch::jit::Stack;

// No loss may wait for its inputs' reductions, and autograd's formulas write to
// tensors made of them.
void reduce_partials(Stack& stack, size_t first, std::string_view op) {
  for (size_t i = first; i < stack.size(); ++i) {
    auto& argument = stack[i];
    const auto* impl =
        argument.isTensor() ? dtensor_impl(argument.toTensor()) : nullptr;
    if (impl && impl->spec().has_partial()) {
      argument = redistribute_to(
          argument.toTensor(), impl->spec().without_partial(), op);
    }
  }
}

// See Note [Losses that are means]: the loss of every element, whose sum may
// wait. Half precision would overflow on a sum, so that is taken in float.
void mean_of_elements(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const auto& schema = op.schema();
  const auto index = schema.argumentIndexWithName("reduction");
  TORCH_INTERNAL_ASSERT(index, schema.name(), " has no reduction");
  const size_t first = stack->size() - schema.arguments().size();
  reduce_partials(*stack, first, schema.name());
  auto& reduction = (*stack)[first + static_cast<size_t>(*index)];
  if (reduction.toInt() != at::Reduction::Mean) {
    // Libtorch's own kernel, which this one stands before.
    op.callBoxedForDispatchKey(
        op.hasKernelForDispatchKey(c10::DispatchKey::Autograd)
            ? c10::DispatchKey::Autograd
            : c10::DispatchKey::CompositeImplicitAutograd,
        *stack);
    return;
  }
  reduction = static_cast<int64_t>(at::Reduction::None);
  op.callBoxed(stack);
  const auto losses = stack->back().toTensor();
  const auto dtype = losses.scalar_type();
  stack->back() =
      (losses.sum(at::toOpMathType(dtype)) / losses.numel()).to(dtype);
}

} // namespace

void register_elementwise_losses(torch::Library& above) {
  for (const auto* name :
       {"binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "huber_loss",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
        "soft_margin_loss"}) {
    above.impl(
        name, torch::CppFunction::makeFromBoxedFunction<&mean_of_elements>());
  }
}

} // namespace weft::dtensor::kernels
