#include "dtensor/tensor/dtensor_impl.h"

#include <cstddef>
#include <mutex>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/libtorch_overrides.h"
#include "dtensor/tensor/registration.h"

namespace weft::dtensor {
namespace {

// Records in the data pointer of `storage` that the DTensor has the memory of
// `local`. memory_shown_by() in libtorch_overrides.cpp reads it.
void show_memory(const c10::Storage& storage, const at::Tensor& local) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(
      nullptr,
      local.has_storage() ? local.storage().unsafeGetStorageImpl() : nullptr,
      &keep_base_memory,
      local.device()));
}

bool shows_memory(const c10::Storage& storage) {
  return storage && storage.unsafeGetStorageImpl()
                            ->_mutable_data_ptr_no_checks()
                            .get_deleter() == &keep_base_memory;
}

// Returns a storage of 0 bytes whose data pointer access throws an explanation.
// Every tensor has a storage of its own, because autograd counts its owners.
c10::Storage no_data(const at::Tensor& local) {
  auto storage = c10::Storage(
      c10::Storage::use_byte_size_t(),
      0,
      at::DataPtr(nullptr, local.device()),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  storage.unsafeGetStorageImpl()
      ->release_data_and_set_meta_custom_data_ptr_error_msg_(
          "a DTensor has no data of its own: use weft::dtensor::to_local(x) "
          "for the local tensor or full_tensor(x) for the full tensor.");
  show_memory(storage, local);
  return storage;
}

void* data_of(const at::Tensor& local) {
  auto* first = static_cast<std::byte*>(local.storage()
                                            .unsafeGetStorageImpl()
                                            ->_mutable_data_ptr_no_checks()
                                            .get());
  return first == nullptr ? nullptr
                          : first + local.storage_offset() *
                                        static_cast<int64_t>(local.itemsize());
}

at::DataPtr own_data(const at::Tensor& local) {
  return at::DataPtr(
      data_of(local),
      local.storage().unsafeGetStorageImpl(),
      &keep_base_memory,
      local.device());
}

// Returns a storage of the memory of `local`, from its first element on. Every
// tensor has a storage of its own, as in no_data().
c10::Storage data_storage(const at::Tensor& local) {
  return c10::Storage(
      c10::Storage::use_byte_size_t(),
      at::detail::computeStorageNbytes(
          local.sizes(), local.strides(), local.itemsize()),
      own_data(local),
      /*allocator=*/nullptr,
      /*resizable=*/false);
}

c10::DispatchKeySet keys(const at::Tensor& local) {
  const auto backend = local.key_set().highestBackendKey();
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse3) |
         c10::getAutocastRelatedKeySetFromBackend(backend);
}

// Returns true if another tensor has the memory of `local`: a view of this
// DTensor, or the tensor that it is a view of.
bool is_shared(const at::Tensor& local) {
  return local.use_count() > 1 ||
         (local.has_storage() && local.storage().use_count() > 1);
}

void prepare_thread() {
  ensure_dispatch_registered();
  // After an in-place write to a view, autograd must compute the view from its
  // base again with the ops that created it. Its default, as_strided, does not
  // support shards.
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
}

// The lock of second_reference_, which any thread that calls storage() may set.
struct SecondReferences {
  std::mutex mutex;
};

} // namespace

DTensorImpl::DTensorImpl(
    at::Tensor local,
    DTensorSpec spec,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides)
    : TensorImpl(keys(local), local.dtype(), local.device()),
      local_(std::move(local)),
      spec_(std::move(spec)) {
  prepare_thread();
  set_sizes_and_strides(sizes, strides);
}

DTensorImpl::DTensorImpl(WithData, const at::Tensor& memory)
    : TensorImpl(c10::Storage(memory.storage()), keys(memory), memory.dtype()),
      local_(memory) {
  prepare_thread();
  set_sizes_and_strides(memory.sizes(), memory.strides());
  set_storage_offset(memory.storage_offset());
}

// Autograd reads the storage before it adds to a gradient, and adds in place if
// the storage has only one owner. So this function checks whether the local
// tensor's memory has other owners. See Note [Gradients that share memory].
const c10::Storage& DTensorImpl::storage() const {
  auto* self = const_cast<DTensorImpl*>(this);
  std::call_once(storage_made_, [this, self] {
    if (!self->storage_) {
      self->storage_ =
          has_data() ? data_storage(self->local_) : no_data(self->local_);
    }
  });
  if (shows_memory(storage_) && has_data() &&
      storage_.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() !=
          data_of(local_)) {
    self->storage_ = data_storage(self->local_); // The memory has moved.
  }
  if (storage_.use_count() == 1 && is_shared(local_)) {
    const std::lock_guard lock(
        spec_.mesh().extension<SecondReferences>().mutex);
    if (!second_reference_) {
      self->second_reference_ = storage_;
    }
  }
  return storage_;
}

// A tensor on no mesh is a full tensor, so its data is that of its local
// tensor: programs read outputs of a model that only FSDP shards as plain
// tensors. A parameter with hooks has no data, because its rows are released
// between its uses.
bool DTensorImpl::has_data() const {
  return spec_.mesh_ndim() == 0 && !parameter_hooks && !deferred &&
         local_.has_storage() && local_.layout() == at::kStrided &&
         !local_.is_meta() && local_.strides() == strides();
}

// libtorch calls this before it reads storage_ for the data pointer, so this
// creates the storage.
bool DTensorImpl::has_storage() const {
  return static_cast<bool>(storage());
}

// Also changes the autocast keys to those of the new device: a parameter is
// created on the CPU and may get its values on another device.
void DTensorImpl::move_local(at::Tensor local) {
  const auto autocast_of = [](const at::Tensor& tensor) {
    return c10::getAutocastRelatedKeySetFromBackend(
        tensor.key_set().highestBackendKey());
  };
  key_set_ = (key_set_ - autocast_of(local_)) | autocast_of(local);
  set_storage_offset(0);
  set_storage_keep_dtype(no_data(local));
  reset_local(std::move(local), spec_);
}

void DTensorImpl::reset_local(at::Tensor local, DTensorSpec spec) {
  const bool had_data = has_data();
  data_type_ = local.dtype();
  local_ = std::move(local);
  spec_ = std::move(spec);
  if (shows_memory(storage_) && (had_data || has_data())) {
    storage_ = has_data() ? data_storage(local_) : no_data(local_);
  } else if (shows_memory(storage_)) {
    show_memory(storage_, local_);
  }
  copied_view.reset();
  shared.clear();
}

void DTensorImpl::set_global_geometry(
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  set_sizes_and_strides(sizes, strides);
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter,
    bool allow_tensor_metadata_change) const {
  auto copy =
      c10::make_intrusive<DTensorImpl>(local_, spec_, sizes(), strides());
  // Creates the storage, so that the copy shares it: autograd counts its
  // owners.
  storage();
  copy_tensor_metadata(
      this, copy.get(), version_counter, allow_tensor_metadata_change);
  copy->deferred = deferred;
  copy->copied_view = copied_view;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter,
    bool allow_tensor_metadata_change) const {
  auto copy =
      c10::make_intrusive<DTensorImpl>(local_, spec_, sizes(), strides());
  // Creates the storage, so that the copy shares it: autograd counts its
  // owners.
  storage();
  copy_tensor_metadata(
      this,
      copy.get(),
      std::move(version_counter),
      allow_tensor_metadata_change);
  copy->deferred = deferred;
  copy->copied_view = copied_view;
  return copy;
}

// TensorImpl's function would change only the sizes and leave the old data, in
// set_data() and Module::to(dtype). A tensor that is set to values of its own
// sizes keeps its placements, by which optimizers and the reducer know it:
// vector_to_parameters() sets all parameters to parts of a replicated vector.
void DTensorImpl::shallow_copy_from(
    const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  auto* source = static_cast<const DTensorImpl*>(impl.get());
  const bool had_these_sizes = sizes() == source->sizes();
  source->storage();
  copy_tensor_metadata(
      source, this, version_counter(), allow_tensor_metadata_change());
  const bool stays = !spec_.has_partial() && !(spec_ == source->spec_) &&
                     spec_.mesh_ndim() > 0 &&
                     spec_.mesh() == source->spec_.mesh() && had_these_sizes;
  if (stays && !source->deferred) {
    check_materialized(at::Tensor(impl), "set_data");
    local_ = redistribute_local(
        source->local_, sizes(), source->spec_, spec_, "set_data");
    if (local_.is_alias_of(source->local_)) {
      local_ = local_.clone(); // A part would keep the full tensor alive.
    }
    copied_view.reset();
  } else {
    local_ = source->local_;
    spec_ = source->spec_;
    copied_view = source->copied_view;
  }
  deferred = source->deferred;
  shared.clear();
}

at::Tensor make_dtensor(
    at::Tensor local,
    const DTensorSpec& spec,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  return at::detail::make_tensor<DTensorImpl>(
      std::move(local), spec, sizes, strides);
}

} // namespace weft::dtensor
