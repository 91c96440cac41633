#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
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

/// The tensor behind a DTensor: global sizes, strides and dtype; this rank's
/// local tensor; and the spec that relates them. Dispatch key PrivateUse3, no
/// data of its own. Everything above autograd sees an ordinary at::Tensor.
/// Source: design probed on torch 2.15; c10/core/TensorImpl.h.
class DTensorImpl final : public c10::TensorImpl {
 public:
  /// Shapes: `sizes` and `strides` are global; `local` has this rank's sizes.
  DTensorImpl(
      at::Tensor local,
      DTensorSpec spec,
      c10::IntArrayRef sizes,
      c10::IntArrayRef strides);

  /// An unplaced DTensor whose data pointer is `memory`'s: what factories
  /// return inside DeferredInit, so that accessors work on it.
  struct WithData {};
  DTensorImpl(WithData, const at::Tensor& memory);
  /// Gives the tensor its values, where `local` lies, and ends the access to
  /// data that WithData gave.
  void move_local(at::Tensor local);

  const at::Tensor& local() const { return local_; }
  const DTensorSpec& spec() const { return spec_; }

  /// Changes what this tensor holds without changing what it is: same global
  /// sizes and dtype, other placement. Used on gradients and at materialize.
  void reset_local(at::Tensor local, DTensorSpec spec);
  /// After an op that resized the local tensor of an unplaced DTensor.
  void set_global_geometry(c10::IntArrayRef sizes, c10::IntArrayRef strides);
  /// Autograd adds into a gradient whose storage nobody else refers to. The
  /// storage is no help here, the local tensor's memory may be shared: after
  /// this, autograd adds out of place.
  void forbid_inplace_accumulation() { second_reference_ = storage(); }

  /// What a module or a parallel style knows of this parameter; null if none.
  std::shared_ptr<ParameterInfo> parameter_info;
  /// Null for almost all tensors.
  std::shared_ptr<ParameterHooks> parameter_hooks;
  /// How to initialise this tensor, until it is materialized; else null.
  std::shared_ptr<DeferredState> deferred;

  /// A local tensor that this one was redistributed to before, so that q, k
  /// and v share one gather. See Note [Shared redistribution].
  struct Shared {
    const void* spec_id;
    const void* grad_id;
    uint64_t version;
    bool grad_mode;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak;
    at::Tensor strong;
    /// What `version` counts under InferenceMode.
    std::shared_ptr<const WriteCounter> writes;
  };
  std::vector<Shared> shared;

  /// Set if this is a view whose local tensor is a copy.
  std::shared_ptr<CopiedView> copied_view;

  /// Made when it is first asked for: few tensors ever are.
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
  const char* tensorimpl_type_name() const override { return "DTensorImpl"; }

  at::Tensor local_;
  DTensorSpec spec_;
  c10::Storage second_reference_;
  mutable std::once_flag storage_made_;
};

/// The impl of a DTensor, or null for any other tensor.
inline DTensorImpl* dtensor_impl(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(
                               c10::DispatchKey::PrivateUse3)) {
    return nullptr;
  }
  return static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl());
}

/// Wraps below autograd: no graph, no checks.
at::Tensor make_dtensor(
    at::Tensor local,
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides);

} // namespace weft::dtensor
