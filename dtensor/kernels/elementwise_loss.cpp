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

// Reduces Partial arguments. The losses are not linear in them, and autograd's
// formulas write in place to tensors that are derived from them.
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

// Computes a mean from the loss of each element, whose sum may stay Partial:
// see Note [Losses that are means]. Half precision would overflow in the sum,
// so it is computed in float.
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
    // Calls libtorch's own kernel, which this one replaces for DTensors.
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

// Note [Losses that are means]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A mean is divided by a number that no rank knows alone: the number of all
// samples, or the weight of the samples that count. A sum over the samples may
// stay Partial, and the gradient of a sample's loss does not depend on other
// samples. So above autograd a mean is computed as a sum and a division, and
// the samples stay sharded, even if the ranks have different numbers of them.

namespace {

using Stack = torch::jit::Stack;

int64_t reduction_argument(const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "reduction") {
      return static_cast<int64_t>(i);
    }
  }
  TORCH_INTERNAL_ASSERT(false, schema.name(), " has no reduction");
}

// Divides the sum by the number or weight of the samples. nll losses return it
// as their last result. The samples of margin losses are the rows.
at::Tensor mean_of(
    const c10::FunctionSchema& schema,
    const at::Tensor& self,
    const at::Tensor& sum,
    const Stack& stack) {
  if (schema.name().starts_with("aten::nll_loss")) {
    return sum / stack.back().toTensor();
  }
  return sum / (self.dim() == 2 ? self.size(0) : 1);
}

void mean_by_sum(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  auto& reduction = (*stack)[first + reduction_argument(schema)];
  const bool mean = reduction.toInt() == at::Reduction::Mean;
  if (mean) {
    reduction = static_cast<int64_t>(at::Reduction::Sum);
  }
  const auto self = (*stack)[first].toTensor();
  // Calls autograd's own kernel. libtorch registers it for all autograd keys,
  // and at AutogradPrivateUse3 this kernel takes its place. So the call uses
  // AutogradOther.
  op.redispatchBoxed(
      keys.remove(c10::DispatchKey::AutogradPrivateUse3)
          .add(c10::DispatchKey::AutogradOther)
          .add(c10::DispatchKey::PrivateUse3),
      stack);
  if (mean) {
    auto& output = (*stack)[stack->size() - schema.returns().size()];
    output = mean_of(schema, self, output.toTensor(), *stack);
  }
}

} // namespace

void register_mean_losses(torch::Library& above) {
  for (const auto* name :
       {"nll_loss_forward",
        "nll_loss2d_forward",
        "multi_margin_loss",
        "multilabel_margin_loss_forward"}) {
    above.impl(name, torch::CppFunction::makeFromBoxedFunction<&mean_by_sum>());
  }
}

} // namespace weft::dtensor::kernels
