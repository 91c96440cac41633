#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include "dtensor/spec/spec.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/write_counter.h"

namespace weft::dtensor {

/// A view whose local tensor is a copy, and the relation to its base, the
/// viewed tensor. See Note [Copied views].
struct CopiedView {
  /// How the values of the copy follow from the base's.
  enum class Values { kSame, kConjugated, kNegated };

  at::Tensor base_local;
  DTensorSpec base_spec;
  /// Global sizes.
  c10::DimVector base_sizes;
  /// Set if the base is itself a copied view.
  std::shared_ptr<CopiedView> base_view;
  std::shared_ptr<const WriteCounter> base_writes;
  /// The number of writes to the base that the copy includes.
  uint64_t seen_writes = 0;

  /// The base as it was copied: the local tensors of the views share its
  /// memory, in which it has these sizes. It is not owned, because autograd
  /// adds in place into a gradient with one owner.
  DTensorSpec copy_spec;
  c10::DimVector copy_sizes;
  c10::DimVector copy_strides;
  int64_t copy_offset = 0;
  Values values = Values::kSame;
};

/// Creates a copied view. `copy` is the local tensor of `base` under
/// `copy_spec`, in its own memory.
std::shared_ptr<CopiedView> make_copied_view(
    const DTensorImpl& base,
    const at::Tensor& copy,
    const DTensorSpec& copy_spec,
    CopiedView::Values values = CopiedView::Values::kSame);

void refresh_copied_view(const DTensorImpl& view);

/// Updates a copied view from its base. Does nothing for other tensors. Must be
/// called before reading the local tensor of a user's DTensor.
/// Collective: all ranks of the mesh, if the tensor is a copied view whose base
/// was written to.
inline void refresh(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  if (impl && impl->copied_view) {
    refresh_copied_view(*impl);
  }
}

/// Must be called on all ranks before writing to the local tensor of a user's
/// DTensor.
/// Throws: c10::ValueError if the tensor is a copied view whose values cannot
/// be written back to its base, or if a scope forbids it.
void check_write(const at::Tensor& tensor, std::string_view op);

/// Must be called after writing to the local tensor of a user's DTensor:
/// invalidates copies of the same memory, and writes a copied view back to its
/// base.
/// Collective: all ranks of the mesh, if the tensor is a copied view.
void note_write(const at::Tensor& tensor, std::string_view op);

} // namespace weft::dtensor
