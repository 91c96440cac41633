#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

struct CopiedView;
struct DeferredState;
class ParameterHooks;
struct ParameterInfo;
class WriteCounter;

/// The implementation of a DTensor: global sizes, strides and dtype, this
/// rank's local tensor, and the spec. It has the dispatch key PrivateUse3 and
/// no data of its own. Above autograd it is an ordinary at::Tensor.
/// Source: c10/core/TensorImpl.h.
class DTensorImpl final : public c10::TensorImpl {
 public:
  /// Shapes: `sizes` and `strides` are global; `local` has this rank's sizes.
  DTensorImpl(
      at::Tensor local,
      DTensorSpec spec,
      c10::IntArrayRef sizes,
      c10::IntArrayRef strides);

  /// Creates an unplaced DTensor whose data pointer is that of `memory`.
  /// Factories return it in DeferredInit, so that accessors work on it.
  struct WithData {};
  DTensorImpl(WithData, const at::Tensor& memory);
  /// Sets the values and the device to those of `local`, and ends the access to
  /// data of WithData.
  void move_local(at::Tensor local);

  const at::Tensor& local() const { return local_; }
  const DTensorSpec& spec() const { return spec_; }

  /// Replaces the local tensor, whose dtype becomes that of this tensor, and
  /// the placements. Global sizes stay. Used for gradients, by materialize()
  /// and for parameters that are gathered for computation.
  void reset_local(at::Tensor local, DTensorSpec spec);
  /// Updates the global geometry after an op that resized the local tensor of
  /// an unplaced DTensor.
  void set_global_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides);
  /// Makes autograd accumulate this gradient out of place. Autograd adds in
  /// place if a gradient's storage has one owner, which does not tell whether
  /// the local tensor's memory is shared.
  void forbid_inplace_accumulation() { second_reference_ = storage(); }

  /// Information from a module or a parallel style about this parameter. Null
  /// if there is none.
  std::shared_ptr<ParameterInfo> parameter_info;
  /// Null for almost all tensors.
  std::shared_ptr<ParameterHooks> parameter_hooks;
  /// The pending initialization. Null after materialize().
  std::shared_ptr<DeferredState> deferred;

  /// The local tensor of an earlier redistribution, so that q, k and v share
  /// one all_gather. See Note [Shared redistribution].
  struct Shared {
    const void* spec_id;
    const void* grad_id;
    /// Keeps the mesh of `spec_id` alive, so that placements of a later mesh
    /// cannot get the same address. Empty if `spec_id` is not a spec's.
    std::optional<DTensorSpec> spec = std::nullopt;
    uint64_t version;
    bool grad_mode;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak;
    at::Tensor strong;
    /// The counter of `version` in InferenceMode.
    std::shared_ptr<const WriteCounter> writes;
  };
  std::vector<Shared> shared;

  /// Set if this is a view whose local tensor is a copy.
  std::shared_ptr<CopiedView> copied_view;

  /// Created at the first call, because few tensors need it.
  const c10::Storage& storage() const override;
  bool has_storage() const override;

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(
      const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

 private:
  /// Returns true if the data pointer is that of the local tensor.
  bool has_data() const;
  const char* tensorimpl_type_name() const override { return "DTensorImpl"; }

  at::Tensor local_;
  DTensorSpec spec_;
  c10::Storage second_reference_;
  mutable std::once_flag storage_made_;
};

/// Returns the implementation of a DTensor, or null for any other tensor.
inline DTensorImpl* dtensor_impl(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(
                               c10::DispatchKey::PrivateUse3)) {
    return nullptr;
  }
  return static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl());
}

/// Creates a DTensor below autograd, without a graph and without checks.
at::Tensor make_dtensor(
    at::Tensor local,
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides);

} // namespace weft::dtensor
