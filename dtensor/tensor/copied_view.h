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

/// What a view whose local tensor is a copy knows of the tensor that it shows,
/// its base. See Note [Copied views].
struct CopiedView {
  /// How the values of the copy follow from the base's.
  enum class Values { kSame, kConjugated, kNegated };

  at::Tensor base_local;
  DTensorSpec base_spec;
  /// Global.
  c10::DimVector base_sizes;
  /// Set if the base is a copied view itself.
  std::shared_ptr<CopiedView> base_view;
  std::shared_ptr<const WriteCounter> base_writes;
  /// How many writes to the base the copy has seen.
  uint64_t seen_writes = 0;

  /// The base as it was copied: the views' local tensors share its memory,
  /// where it has these sizes. It is not held, since whoever holds a gradient
  /// alone may add into it.
  DTensorSpec copy_spec;
  c10::DimVector copy_sizes;
  c10::DimVector copy_strides;
  int64_t copy_offset = 0;
  Values values = Values::kSame;
};

/// `copy`: the local tensor of `base` under `copy_spec`, in memory of its own.
std::shared_ptr<CopiedView> make_copied_view(
    const DTensorImpl& base,
    const at::Tensor& copy,
    const DTensorSpec& copy_spec,
    CopiedView::Values values = CopiedView::Values::kSame);

void refresh_copied_view(const DTensorImpl& view);

/// Brings a copied view up to date with its base; nothing for other tensors.
/// Everything that reads the local tensor of a user's DTensor calls it first.
/// Collective: all ranks of the mesh, if the tensor is a copied view whose base
/// was written to since.
inline void refresh(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  if (impl && impl->copied_view) {
    refresh_copied_view(*impl);
  }
}

/// To be called by whatever is about to write to the local tensor of a user's
/// DTensor, on all ranks.
/// Throws: c10::ValueError if the tensor is a copied view and its values cannot
/// be brought back to its base, or if a scope forbids to.
void check_write(const at::Tensor& tensor, std::string_view op);

/// To be called by whatever has written to the local tensor of a user's
/// DTensor: copies of the same memory are out of date now, and what was written
/// to a copied view is brought to its base.
/// Collective: all ranks of the mesh, if the tensor is a copied view.
void note_write(const at::Tensor& tensor, std::string_view op);

} // namespace weft::dtensor
