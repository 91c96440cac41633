#include "dtensor/libtorch_overrides.h"

#include <string>

#include <torch/torch.h>

#include "dtensor/print.h"

// Note [Functions of libtorch that are defined here]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Two functions of libtorch offer no hook and do the wrong thing for a tensor
// that has no data of its own:
//   at::print(), which `stream << tensor` calls, takes the data pointer of
//   tensor.to(kCPU, kDouble).contiguous(), and would throw from inside a log
//   line or a test's message;
//   StorageImpl::throw_data_ptr_access_error() throws a plain c10::Error where
//   a caller's mistake is a c10::ValueError.
// Programs take a function of their own (or of an archive's) before a shared
// library's, and so does libtorch in their process: both are defined here, and
// do for all other tensors what libtorch's do. A libtorch whose functions have
// other names would use its own again.

namespace weft::dtensor {

void link_libtorch_overrides() {}

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

} // namespace c10
