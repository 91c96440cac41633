#include "dtensor/tensor/print.h"

#include <dlfcn.h>

#include <exception>
#include <ostream>

#include <torch/torch.h>

#include "base/string_streams.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {
namespace {

using Print = std::ostream& (*)(std::ostream&, const at::Tensor&, int64_t);

// Returns libtorch's definition, which is the next one after Weft's, or null.
// See Note [Functions of libtorch that are defined here].
Print libtorch_print() {
  static const auto print = reinterpret_cast<Print>(
      dlsym(RTLD_NEXT, "_ZN2at5printERSoRKNS_6TensorEl"));
  return print;
}

void print_plain(
    std::ostream& stream,
    const at::Tensor& tensor,
    int64_t line_size) {
  if (const auto print = libtorch_print()) {
    print(stream, tensor, line_size);
  } else {
    stream << "[ " << tensor.toString() << " " << tensor.sizes() << " ]";
  }
}

void print_local(
    std::ostream& stream,
    const at::Tensor& tensor,
    int64_t line_size) {
  if (is_deferred(tensor)) {
    stream << " (values come with materialize())";
    return;
  }
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard at_once(
      c10::DispatchKey::DeferredInit);
  base::StringWriter values;
  try {
    print_plain(values, dtensor_impl(tensor)->local(), line_size);
    stream << '\n' << values.str();
  } catch (const std::exception& error) {
    stream << " (this rank's values cannot be shown: " << error.what() << ")";
  }
}

} // namespace

void print(std::ostream& stream, const at::Tensor& tensor, int64_t line_size) {
  if (!is_dtensor(tensor)) {
    print_plain(stream, tensor, line_size);
    return;
  }
  stream << describe(tensor);
  if (const auto& spec = dtensor_impl(tensor)->spec(); spec.mesh_ndim() > 0) {
    stream << " on rank " << spec.mesh().rank();
  }
  print_local(stream, tensor, line_size);
}

std::string to_string(const at::Tensor& tensor) {
  base::StringWriter stream;
  print(stream, tensor);
  return stream.str();
}

} // namespace weft::dtensor
