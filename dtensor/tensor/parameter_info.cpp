#include "dtensor/tensor/parameter_info.h"

#include "mesh/error/error.h"

namespace weft::dtensor {

ParameterInfo& parameter_info(const at::Tensor& dtensor) {
  auto* impl = dtensor_impl(dtensor);
  TORCH_CHECK_VALUE(
      impl != nullptr,
      "[parameter_info] not a DTensor but a plain tensor of sizes ",
      dtensor.sizes(),
      ".");
  if (!impl->parameter_info) {
    impl->parameter_info = std::make_shared<ParameterInfo>();
  }
  return *impl->parameter_info;
}

std::string parameter_name(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  return impl && impl->parameter_info ? impl->parameter_info->fqn : "";
}

} // namespace weft::dtensor
