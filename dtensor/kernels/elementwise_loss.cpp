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

// Note [Losses that are means]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A mean divides by what no rank knows alone: the number of all samples, or
// the weight of those that count. A sum over the samples can wait, and its
// gradient is each sample's own. So above autograd a mean is made of the sum
// and a division, and samples stay cut however uneven their parts.

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

// What the sum is divided by: nll losses return it, margin losses have as many
// samples as rows.
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
  // Autograd's own kernel is the same at every autograd key; this one's it
  // would be without ours.
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
