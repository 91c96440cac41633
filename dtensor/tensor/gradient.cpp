#include "dtensor/tensor/gradient.h"

#include <map>
#include <mutex>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "dtensor/tensor/parameter_info.h"

namespace weft::dtensor {
namespace {

// The leaves whose gradients are reduced at the end of their backward pass, by
// the pass's graph task id. A pass that failed never reaches its end, and must
// not keep the next one from reducing. The object belongs to the mesh, so ranks
// that are threads of one process have separate ones.
struct PartialGradients {
  std::mutex mutex;
  std::map<int, std::vector<at::Tensor>> leaves_of;
};

bool is_partial_sum_of(const DTensorSpec& gradient, const DTensorSpec& kept) {
  for (int64_t i = 0; i < kept.mesh_ndim(); ++i) {
    const auto& from = gradient.placement(i);
    const auto& to = kept.placement(i);
    if (from != to && !(from.is_partial(ReduceOp::kSum) && to.is_replicate())) {
      return false;
    }
  }
  return true;
}

void reduce_partials(const mesh::DeviceMesh& mesh, int pass) {
  auto& pending = mesh.extension<PartialGradients>();
  std::vector<at::Tensor> leaves;
  {
    const std::lock_guard lock(pending.mutex);
    leaves.swap(pending.leaves_of[pass]);
    // Passes with a larger id ran inside of this one and have ended.
    pending.leaves_of.erase(
        pending.leaves_of.find(pass), pending.leaves_of.end());
  }
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    std::vector<at::Tensor> locals;
    for (const auto& leaf : leaves) {
      auto* grad = dtensor_impl(leaf.grad());
      if (grad && grad->spec().placement(i).is_partial(ReduceOp::kSum)) {
        locals.push_back(grad->local());
        grad->reset_local(grad->local(), grad->spec().with(i, Replicate()));
      }
    }
    if (!locals.empty()) {
      mesh.group(i)
          .all_reduce_coalesced(locals, ReduceOp::kSum, "partial gradients")
          .wait();
    }
  }
}

void reduce_at_end_of_backward(
    const at::Tensor& leaf,
    const mesh::DeviceMesh& mesh) {
  auto& pending = mesh.extension<PartialGradients>();
  const int pass = torch::autograd::get_current_graph_task_id();
  const std::lock_guard lock(pending.mutex);
  auto& leaves = pending.leaves_of[pass];
  if (leaves.empty()) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [mesh, pass] { reduce_partials(mesh, pass); });
  }
  for (const auto& other : leaves) {
    if (other.is_same(leaf)) {
      return;
    }
  }
  leaves.push_back(leaf);
}

// Returns a gradient that autograd may store in a leaf without one. Autograd
// stores a tensor that has only one owner without copying it, and later adds to
// it in place. A shard of a replicated gradient is such a tensor, but its
// memory may also become another leaf's gradient. So it is copied.
at::Tensor with_own_memory(const at::Tensor& leaf, const at::Tensor& gradient) {
  const auto* impl = dtensor_impl(gradient);
  if (leaf.grad().defined() || at::GradMode::is_enabled() || !impl ||
      !impl->local().has_storage() ||
      impl->local().storage().use_count() == 1) {
    return gradient;
  }
  return make_dtensor(
      impl->local().clone(), impl->spec(), impl->sizes(), impl->strides());
}

at::Tensor place_gradient(DTensorImpl& leaf_impl, const at::Tensor& gradient) {
  if (!gradient.defined()) {
    return gradient; // The derivative formula has no gradient.
  }
  const at::Tensor leaf(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(
      static_cast<c10::TensorImpl*>(&leaf_impl)));
  if (leaf_impl.parameter_hooks) {
    leaf_impl.parameter_hooks->before_gradient();
  }
  const auto* impl = dtensor_impl(gradient);
  // The value to which a Partial leaf is reduced has one gradient, so it is
  // replicated. Stored as terms of the leaf's own reduction, it could not be
  // distinguished from a sum that has yet to be reduced.
  const auto spec =
      (leaf_impl.parameter_hooks ? leaf_impl.parameter_hooks->gradient_spec()
                                 : leaf_impl.spec())
          .without_partial();
  if (spec.mesh_ndim() == 0 || (impl && impl->spec().mesh_ndim() == 0)) {
    return gradient;
  }
  // Derivative formulas of libtorch return plain zeros for a missing gradient.
  if (!impl && gradient.sizes() == leaf.sizes() &&
      !gradient.any().item<bool>()) {
    auto zeros = at::zeros_like(leaf.detach());
    auto* zeros_impl = dtensor_impl(zeros);
    zeros_impl->reset_local(zeros_impl->local(), spec);
    return zeros;
  }
  TORCH_CHECK_VALUE(
      impl,
      "[backward] the gradient of ",
      describe(leaf),
      " is a plain tensor of sizes ",
      gradient.sizes(),
      ". Pass backward() a DTensor gradient (from_local or "
      "distribute_tensor). (",
      spec.mesh().describe_rank(),
      ")");
  const auto name = parameter_name(leaf);
  const auto* existing = dtensor_impl(leaf.grad());
  if (!is_partial_sum_of(impl->spec(), spec)) {
    return with_own_memory(
        leaf, redistribute_to(gradient, spec, name + " gradient"));
  }
  if (existing && !(existing->spec() == impl->spec())) {
    if (existing->spec().has_partial()) {
      return redistribute_to(gradient, existing->spec(), name + " gradient");
    }
    make_gradient_partial(leaf.grad(), impl->spec());
  }
  if (!(impl->spec() == spec) &&
      !leaf_impl.parameter_info->gradient_reduced_by_ddp) {
    reduce_at_end_of_backward(leaf, spec.mesh());
  }
  return with_own_memory(leaf, gradient);
}

} // namespace

void make_gradient_partial(
    const at::Tensor& gradient,
    const DTensorSpec& partial) {
  auto* impl = dtensor_impl(gradient);
  for (int64_t i = 0; i < partial.mesh_ndim(); ++i) {
    // Equal terms of an average, minimum or maximum reduce to themselves, so
    // only sums need zeros.
    if (partial.placement(i).is_partial(ReduceOp::kSum) &&
        !impl->spec().placement(i).is_partial() &&
        partial.mesh().coordinate(i) != 0) {
      const at::NoGradGuard no_grad;
      at::Tensor(impl->local()).zero_();
    }
  }
  impl->reset_local(impl->local(), partial);
}

void match_gradient_placement(const at::Tensor& leaf) {
  auto* impl = dtensor_impl(leaf);
  if (!impl || !leaf.requires_grad() || !leaf.is_leaf()) {
    return;
  }
  auto& info = parameter_info(leaf);
  if (info.matches_gradient_placement) {
    return;
  }
  info.matches_gradient_placement = true;
  // The hook lives in the leaf, so the leaf outlives it.
  leaf.register_hook([impl](const at::Tensor& gradient) {
    return place_gradient(*impl, gradient);
  });
}

} // namespace weft::dtensor
