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
// Autograd passes a gradient on without copying it, adds in place to one that
// has no other owner, and stores it in a leaf. It reads reference counts, which
// do not show that a DTensor and its parts share the memory of local tensors.
// So the nodes that create a new tensor in a gradient's memory check this
// themselves: if the gradient may have another owner, in-place additions are
// forbidden, and a leaf gets a copy.
bool is_shared_gradient(const at::Tensor& grad) {
  const auto* impl = dtensor_impl(grad);
  const auto& memory = impl ? impl->local() : grad;
  // Derivative formulas return views of tensors that they created, e.g. the t()
  // of a product. Such a view is the only owner of its base.
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
