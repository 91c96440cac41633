#include "dtensor/tensor/copied_view.h"

#include <string>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/implicit_redistribution.h"

namespace weft::dtensor {

// Note [Copied views]
// ~~~~~~~~~~~~~~~~~~~
// A view op runs on the local tensors, and its result shares their memory: a
// write to one is visible in the other. If the op had to redistribute its input
// first, or the local tensor's strides do not allow the view, the result's
// local tensor is a view of a copy. Such a DTensor, a copied view, and all
// further views of it have a CopiedView, with which they behave as if they
// shared memory with the base:
//
// - After a write to a copied view, the whole copy is redistributed to the
//   base's placements and written there (note_write). If the base is a copied
//   view too, the same is done for it.
// - Before a copied view is read or written, the copy is updated if the base's
//   memory was written to since (refresh).
//
// Code that writes to a base may not know of its copies: it may use another
// view or a detached tensor. So a WriteCounter counts writes to the memory, not
// to the tensor. All ranks run the same ops on the same DTensors, so they agree
// on when a copy is out of date, without communication.

namespace {

// Returns the copy, of whose memory `view_local` is a view.
at::Tensor copy_of(const CopiedView& link, const at::Tensor& view_local) {
  return at::empty({0}, view_local.options())
      .set_(
          view_local.storage(),
          link.copy_offset,
          link.copy_sizes,
          link.copy_strides);
}

// Computes the copy's values from the base's, or the reverse, because
// conjugation and negation are their own inverses.
at::Tensor apply(CopiedView::Values values, const at::Tensor& local) {
  switch (values) {
    case CopiedView::Values::kConjugated:
      return at::conj_physical(local);
    case CopiedView::Values::kNegated:
      return at::neg(local);
    default:
      return local;
  }
}

// Updates the copy, and before it the copies on which its base depends.
// `memory` is a local tensor in the copy's memory.
void refresh_copy(CopiedView& link, const at::Tensor& memory) {
  if (link.base_view) {
    refresh_copy(*link.base_view, link.base_local);
  }
  const uint64_t writes = link.base_writes->count();
  if (writes == link.seen_writes) {
    return;
  }
  const auto values = redistribute_local(
      link.base_local,
      link.base_sizes,
      link.base_spec,
      link.copy_spec,
      "refresh of a view");
  copy_of(link, memory).copy_(apply(link.values, values));
  link.seen_writes = writes;
  count_write(link.copy_spec, memory);
}

void write_back(
    CopiedView& link,
    const at::Tensor& memory,
    std::string_view op) {
  const auto values = redistribute_local(
      apply(link.values, copy_of(link, memory)),
      link.base_sizes,
      link.copy_spec,
      link.base_spec,
      op);
  link.base_local.copy_(values);
  count_write(link.base_spec, link.base_local);
  link.seen_writes = link.base_writes->count();
  if (link.base_view) {
    write_back(*link.base_view, link.base_local, op);
  }
}

} // namespace

std::shared_ptr<CopiedView> make_copied_view(
    const DTensorImpl& base,
    const at::Tensor& copy,
    const DTensorSpec& copy_spec,
    CopiedView::Values values) {
  auto link = std::make_shared<CopiedView>();
  link->base_local = base.local();
  link->base_spec = base.spec();
  link->base_sizes = c10::DimVector(base.sizes());
  link->base_view = base.copied_view;
  link->base_writes = watch_writes(base.spec(), base.local());
  link->seen_writes = link->base_writes->count();
  link->copy_spec = copy_spec;
  link->copy_sizes = c10::DimVector(copy.sizes());
  link->copy_strides = c10::DimVector(copy.strides());
  link->copy_offset = copy.storage_offset();
  link->values = values;
  return link;
}

void refresh_copied_view(const DTensorImpl& view) {
  const at::AutoDispatchBelowADInplaceOrView below;
  refresh_copy(*view.copied_view, view.local());
}

void check_write(const at::Tensor& tensor, std::string_view op) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl || !impl->copied_view) {
    return;
  }
  for (const auto* link = impl->copied_view.get(); link;
       link = link->base_view.get()) {
    for (int64_t i = 0; i < link->base_spec.mesh_ndim(); ++i) {
      const auto& placement = link->base_spec.placement(i);
      if (placement.is_partial() && link->copy_spec.placement(i) != placement) {
        check_partial_form(placement.reduce_op(), tensor.scalar_type());
      }
    }
    check_implicit_redistribution(
        op, tensor, link->copy_spec, link->base_spec, [&] {
          return "(" + describe(tensor) +
                 ", a view of a tensor with placements " +
                 to_string(link->base_spec.placements()) + ")";
        });
  }
}

void note_write(const at::Tensor& tensor, std::string_view op) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl || impl->spec().mesh_ndim() == 0) {
    return;
  }
  count_write(impl->spec(), impl->local());
  if (impl->copied_view) {
    const at::AutoDispatchBelowADInplaceOrView below;
    write_back(*impl->copied_view, impl->local(), op);
  }
}

} // namespace weft::dtensor
