#include "dtensor/tensor/libtorch_overrides.h"

#include <string>

#include <torch/torch.h>

#include "dtensor/tensor/print.h"

// Note [Functions of libtorch that are defined here]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Three functions of libtorch have no hook and fail for a tensor that has no
// data of its own:
// - at::print(), which `stream << tensor` calls, reads the data pointer of
//   tensor.to(kCPU, kDouble).contiguous(). It would throw from inside a log
//   line or a test's message.
// - StorageImpl::throw_data_ptr_access_error() throws a plain c10::Error, but a
//   caller's mistake is a c10::ValueError.
// - isSharedStorageAlias(), which tensor.is_alias_of() calls, reads the data
//   pointers of both tensors. It would throw, e.g. from x.index_put_({mask},
//   value).
// The dynamic linker prefers a function of the program (or of an archive in it)
// to one of a shared library, and libtorch in the same process calls that one
// as well. So all three are defined here. For all other tensors they do what
// libtorch's functions do. A libtorch whose functions have other names would
// call its own ones.

namespace weft::dtensor {

void link_libtorch_overrides() {}

void keep_base_memory(void* /*memory*/) {}

namespace {

const void* memory_shown_by(const c10::Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  const auto& pointer = impl->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &keep_base_memory ? pointer.get_context()
                                                    : impl;
}

} // namespace
} // namespace weft::dtensor

namespace at {

std::ostream&
print(std::ostream& stream, const Tensor& tensor, int64_t line_size) {
  weft::dtensor::print(stream, tensor, line_size);
  return stream;
}

} // namespace at

namespace c10 {

void StorageImpl::throw_data_ptr_access_error() const {
  const auto message =
      extra_meta_ && extra_meta_->custom_data_ptr_error_msg_
          ? *extra_meta_->custom_data_ptr_error_msg_
          : std::string(
                "Cannot access data pointer of Storage that is invalid.");
  TORCH_CHECK_VALUE(message.find("DTensor") == std::string::npos, message);
  TORCH_CHECK(false, message);
}

// libtorch's function is about storages that several Python interpreters share.
// A process without Python has none.
bool isSharedStorageAlias(const Storage& first, const Storage& second) {
  const auto* memory = weft::dtensor::memory_shown_by(first);
  return memory && memory == weft::dtensor::memory_shown_by(second);
}

} // namespace c10
