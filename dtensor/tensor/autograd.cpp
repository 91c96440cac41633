#include "dtensor/tensor/autograd.h"

#include <optional>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "dtensor/scopes/saved_tensor_hooks.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/graph_nodes.h"
#include "dtensor/tensor/implicit_redistribution.h"
#include "dtensor/tensor/write_counter.h"

namespace weft::dtensor {

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
// A node gets its spec after it is created. A default DTensorSpec would create
// a mesh without dims until then.
using LateSpec = std::optional<DTensorSpec>;

struct ToLocalBackward final : Node {
  LateSpec grad_spec;
  c10::DimVector sizes;
  c10::DimVector strides;
  std::string label;

  std::string name() const override { return "ToLocalBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    // The gradient of sum(), for example, is not dense: it is one number
    // expanded to all elements.
    const bool dense = grads[0].is_non_overlapping_and_dense();
    const bool shared = dense && is_shared_gradient(grads[0]);
    auto result = from_local_impl(
        dense ? grads[0] : grads[0].contiguous(),
        *grad_spec,
        sizes,
        strides,
        label);
    return {shared ? share_gradient(*this, grads[0], result) : result};
  }
};

struct FromLocalBackward final : Node {
  LateSpec spec;
  LateSpec grad_spec;
  std::string label;

  std::string name() const override { return "FromLocalBackward"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) {
      return {at::Tensor()};
    }
    require_dtensor_gradient(grads[0], "from_local backward");
    const bool shared = is_shared_gradient(grads[0]);
    // If the ranks hold terms of a sum, the gradient goes to each of them.
    // Their second derivatives are then terms of a sum as well.
    auto second = grad_spec->placements();
    for (int64_t i = 0; i < spec->mesh_ndim(); ++i) {
      if (spec->placement(i).is_partial() && second[i].is_replicate()) {
        second[i] = Partial();
      }
    }
    auto local = to_local_impl(grads[0], *grad_spec, second, label);
    for (int64_t i = 0; i < spec->mesh_ndim(); ++i) {
      if (spec->placement(i).is_partial(ReduceOp::kAvg)) {
        local = local / static_cast<double>(spec->mesh().size(i));
      }
    }
    return {shared ? share_gradient(*this, grads[0], local) : local};
  }
};

// Returns the local tensor with another TensorImpl that shares the DTensor's
// version counter. So backward fails if the DTensor is changed in place after
// an op on the local tensor saved it.
at::Tensor alias_local(DTensorImpl& impl) {
  return at::Tensor(impl.local().unsafeGetTensorImpl()->shallow_copy_and_detach(
      impl.version_counter(), /*allow_tensor_metadata_change=*/false));
}

at::Tensor to_local_recorded(
    const at::Tensor& dtensor,
    const DTensorSpec& grad,
    std::string_view name) {
  auto* impl = dtensor_impl(dtensor);
  auto local = alias_local(*impl);
  if (records_graph(dtensor)) {
    auto* node = record<ToLocalBackward>(dtensor, local);
    node->grad_spec = grad;
    node->sizes = impl->sizes();
    node->strides = impl->strides();
    node->label = name;
  }
  return local;
}

// Note [Shared redistribution]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// q, k and v (or gate and up) request the same input with the same placements.
// The first call stores its local tensor in the input's impl, and the other
// calls return it. So there is one gather in forward, and one reduction in
// backward, since autograd adds the gradients of the shared tensor before it
// passes the sum to the gather's node. While a graph is recorded, the reference
// is weak: the graph holds the tensor as long as it is needed, and a strong
// reference would be a cycle for leaves. Without a graph, the reference is
// strong and ends with the input. Hooks that take what the graph would have
// saved (activation checkpointing) hold the tensor as long as their scope
// exists. An entry is used only for the same version of the data and the same
// grad mode. In InferenceMode, a WriteCounter counts versions.
at::Tensor find_shared(DTensorImpl& impl, const DTensorImpl::Shared& wanted) {
  std::erase_if(impl.shared, [&](const auto& entry) {
    return entry.version != wanted.version ||
           (!entry.strong.defined() && entry.weak.expired());
  });
  for (const auto& entry : impl.shared) {
    if (entry.spec_id == wanted.spec_id && entry.grad_id == wanted.grad_id &&
        entry.grad_mode == wanted.grad_mode) {
      if (entry.strong.defined()) {
        return entry.strong;
      }
      if (auto locked = entry.weak.lock()) {
        return at::Tensor(std::move(locked));
      }
    }
  }
  return {};
}

} // namespace

at::Tensor to_local_impl(
    const at::Tensor& dtensor,
    const DTensorSpec& want,
    const Placements& grad,
    std::string_view name,
    const ToLocalImplOptions& options) {
  auto* impl = dtensor_impl(dtensor);
  check_materialized(dtensor, name);
  const bool graph = records_graph(dtensor);
  const auto grad_spec = want.with(grad);
  std::shared_ptr<const WriteCounter> writes;
  if (dtensor.is_inference() && !(impl->spec() == want)) {
    writes = watch_writes(impl->spec(), impl->local());
  }
  DTensorImpl::Shared entry{
      .spec_id = want.id(),
      .grad_id = grad_spec.id(),
      .spec = want,
      .version = dtensor.is_inference()
                     ? (writes ? writes->count() : 0)
                     : impl->version_counter().current_version(),
      .grad_mode = graph,
      .weak =
          c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
              c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()),
      .strong = {},
      .writes = writes};
  if (auto shared = find_shared(*impl, entry); shared.defined()) {
    return shared;
  }
  if (!options.asked) {
    check_implicit_redistribution(name, dtensor, impl->spec(), want, [&] {
      return "(" + describe(dtensor) + ")";
    });
  }
  auto placed =
      options.move
          ? redistribute_by(options.move, dtensor, want, name, !options.asked)
          : redistribute_as(
                dtensor, want, name, dtensor.scalar_type(), {}, !options.asked);
  if (graph && options.in_two_steps && !placed.is_same(dtensor)) {
    send_gradient_early(placed);
  }
  auto local = to_local_recorded(placed, grad_spec, name);
  if (graph) {
    keep_while_hooked(local);
    entry.weak =
        c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
            local.getIntrusivePtr());
  } else if (!(impl->spec() == want)) {
    entry.strong = local;
  } else {
    return local;
  }
  impl->shared.push_back(std::move(entry));
  return local;
}

std::optional<uint64_t> deferred_sequence_nr(const at::Tensor& entered) {
  const auto& leaving = entered.grad_fn();
  if (!leaving || leaving->num_outputs() == 0) {
    return std::nullopt;
  }
  return sequence_nr_of(leaving->next_edge(0).function.get());
}

at::Tensor from_local_impl(
    const at::Tensor& local,
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef global_strides,
    std::string_view name,
    const std::optional<Placements>& grad) {
  at::Tensor output;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    output = make_dtensor(local.detach(), spec, global_sizes, global_strides);
  }
  if (records_graph(local)) {
    auto* node = record<FromLocalBackward>(local, output);
    node->spec = spec;
    node->grad_spec = grad ? spec.with(*grad) : spec.without_partial();
    node->label = name;
  }
  return output;
}

} // namespace weft::dtensor
