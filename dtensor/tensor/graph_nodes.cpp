#include "dtensor/tensor/graph_nodes.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace weft::dtensor {

DTensorImpl& require_dtensor_gradient(
    const at::Tensor& grad,
    const char* node_name) {
  auto* impl = dtensor_impl(grad);
  TORCH_CHECK_VALUE(
      impl != nullptr,
      "[",
      node_name,
      "] the gradient of a DTensor is a plain tensor of sizes ",
      grad.sizes(),
      ". Pass backward() a DTensor gradient (from_local or "
      "distribute_tensor).");
  return *impl;
}

// Note [Gradients that share memory]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Autograd hands a gradient on without copying it, adds into one that nobody
// else refers to, and lets a leaf keep it. It looks at reference counts, which
// say nothing of the local tensors that a DTensor and its parts share. So the
// nodes that make a new tensor over a gradient's memory, look
// themselves: where somebody else may hold that gradient, nobody may add into
// it, and a leaf gets a copy.
bool is_shared_gradient(const at::Tensor& grad) {
  const auto* impl = dtensor_impl(grad);
  const auto& memory = impl ? impl->local() : grad;
  // Derivative formulas return views of what they made, e.g. a product's t():
  // such a view alone holds the tensor that it shows.
  const bool holds_base = !memory.is_inference() && memory.is_view() &&
                          memory._base().use_count() == 1;
  return grad.use_count() > 1 || memory.use_count() > 1 ||
         (memory.has_storage() &&
          memory.storage().use_count() > (holds_base ? 2 : 1));
}

namespace {

void forbid_inplace_accumulation(const at::Tensor& grad) {
  if (auto* impl = dtensor_impl(grad)) {
    impl->forbid_inplace_accumulation();
  }
}

} // namespace

at::Tensor share_gradient(
    const torch::autograd::Node& node,
    const at::Tensor& grad,
    at::Tensor result) {
  const auto* next = node.next_edge(0).function.get();
  if (dynamic_cast<const torch::autograd::AccumulateGrad*>(next)) {
    return result.clone();
  }
  forbid_inplace_accumulation(grad);
  forbid_inplace_accumulation(result);
  return result;
}

} // namespace weft::dtensor
