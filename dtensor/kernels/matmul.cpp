// libtorch's C++ nn::Linear does not call aten::linear. It multiplies by
// weight.t() and adds the bias. The kernels below convert such matmuls to
// linear().

#include <ATen/ops/matmul_native.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {

// A view with a parameter's sizes and strides in reverse order is its t().
at::Tensor transposed_parameter(const at::Tensor& transposed) {
  if (transposed.dim() != 2 || !dtensor_impl(transposed) ||
      transposed.is_inference() || !transposed.is_view()) {
    return {};
  }
  const at::Tensor base(transposed._base());
  const auto* impl = dtensor_impl(base);
  const bool is_parameter =
      impl && impl->parameter_info && impl->spec().mesh_ndim() != 0;
  const bool fits = is_parameter && base.dim() == 2 &&
                    base.size(0) == transposed.size(1) &&
                    base.size(1) == transposed.size(0) &&
                    base.stride(0) == transposed.stride(1) &&
                    base.stride(1) == transposed.stride(0) &&
                    base.scalar_type() == transposed.scalar_type();
  return fits ? base : at::Tensor();
}

at::Tensor matmul(const at::Tensor& left, const at::Tensor& right) {
  if (const auto weight = transposed_parameter(right); weight.defined()) {
    return kernels::linear(left, weight, std::nullopt);
  }
  return at::native::matmul(left, right);
}

at::Tensor addmm(
    c10::DispatchKeySet keys,
    const at::Tensor& bias,
    const at::Tensor& left,
    const at::Tensor& right,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  const bool is_sum = beta.equal(1) && alpha.equal(1) && bias.dim() == 1;
  if (const auto weight = transposed_parameter(right);
      is_sum && weight.defined()) {
    return kernels::linear(left, weight, bias);
  }
  // Calls autograd's own kernel. libtorch registers it for all autograd keys,
  // and at AutogradPrivateUse3 this kernel takes its place. So the call uses
  // AutogradOther.
  const auto others = keys.remove(c10::DispatchKey::AutogradPrivateUse3)
                          .add(c10::DispatchKey::AutogradOther)
                          .add(c10::DispatchKey::PrivateUse3);
  return at::_ops::addmm::redispatch(others, bias, left, right, beta, alpha);
}

} // namespace weft::dtensor::kernels
