#include "data_parallel/parameters/parameter_cast.h"

#include <utility>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::data_parallel {

at::Tensor in_dtype(const at::Tensor& tensor, c10::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto* impl = dtensor::dtensor_impl(tensor);
  if (!impl) {
    return tensor.detach().to(dtype);
  }
  // Casts the local tensor without the dispatcher, so that Partial stays
  // Partial.
  return dtensor::make_dtensor(
      impl->local().to(dtype), impl->spec(), impl->sizes(), impl->strides());
}

ParameterCast::ParameterCast(
    std::vector<at::Tensor> parameters,
    c10::ScalarType dtype)
    : parameters_(std::move(parameters)), dtype_(dtype) {}

ParameterCast::~ParameterCast() {
  if (is_low_precision()) {
    restore();
  }
}

at::Tensor ParameterCast::full(const at::Tensor& parameter) const {
  for (size_t i = 0; i < full_.size(); ++i) {
    if (parameters_[i].is_same(parameter)) {
      return full_[i];
    }
  }
  return {};
}

void ParameterCast::cast_to_low_precision() {
  for (auto& parameter : parameters_) {
    full_.push_back(parameter.variable_data());
    parameter.set_data(in_dtype(parameter, dtype_));
    versions_.push_back(parameter._version());
  }
}

void ParameterCast::restore() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < full_.size(); ++i) {
    if (parameters_[i]._version() != versions_[i]) {
      local_part(full_[i]).copy_(local_part(parameters_[i]));
    }
    parameters_[i].set_data(full_[i]);
  }
  full_.clear();
  versions_.clear();
}

} // namespace weft::data_parallel
