// Norms over the last dims: the other dims may be cut, and then the gradients
// of weight and bias are pending sums (sequence parallelism).

#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

struct NormRegion {
  at::Tensor input;
  std::optional<at::Tensor> weight;
  std::optional<at::Tensor> bias;
  DTensorSpec output;
  std::string name;
};

NormRegion enter_norm(
    const at::Tensor& input,
    size_t normalized_dims,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias) {
  const auto spec = common_spec(
      {&input, weight ? &*weight : nullptr, bias ? &*bias : nullptr});
  const auto* info = weight ? dtensor_impl(*weight) : nullptr;
  const auto layout = info && info->parameter_info
                          ? info->parameter_info->norm.input
                          : std::nullopt;
  check_operands("norm", spec, {{input, layout.has_value()}, weight, bias});
  // A style cuts what is whole.
  const auto x = place(input, spec);
  const auto free_dims = x.dim() - static_cast<int64_t>(normalized_dims);
  const auto wanted = layout.value_or(spec_of(x).placements());
  Placements placements;
  Placements parameter_grad;
  for (const auto& wish : wanted) {
    const auto placement = wish.normalized(x.dim());
    const bool keep =
        placement.is_shard() && placement.tensor_dim() < free_dims;
    placements.push_back(keep ? placement : Replicate());
    parameter_grad.push_back(keep ? Partial() : Replicate());
  }
  const auto whole = spec.with(Placements(spec.mesh_ndim(), Replicate()));
  NormRegion region;
  region.name = weight ? label("norm", *weight) : "norm";
  region.output = spec.with(placements);
  region.input = enter_local(
      x, region.output, placements, region.name, /*asked=*/layout.has_value());
  if (weight && weight->defined()) {
    region.weight =
        enter_local(place(*weight, spec), whole, parameter_grad, region.name);
  }
  if (bias && bias->defined()) {
    region.bias =
        enter_local(place(*bias, spec), whole, parameter_grad, region.name);
  }
  return region;
}

at::Tensor leave_norm(
    const at::Tensor& local,
    const at::Tensor& input,
    const NormRegion& region) {
  return leave_local(
      local,
      region.output,
      input.sizes(),
      dense_strides(input.sizes(), input.strides()),
      region.name);
}

} // namespace

at::Tensor rms_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    std::optional<double> eps) {
  const auto region =
      enter_norm(input, normalized_shape.size(), weight, std::nullopt);
  return leave_norm(
      at::rms_norm_symint(region.input, normalized_shape, region.weight, eps),
      input,
      region);
}

at::Tensor layer_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool cudnn_enable) {
  const auto region = enter_norm(input, normalized_shape.size(), weight, bias);
  return leave_norm(
      at::layer_norm_symint(
          region.input,
          normalized_shape,
          region.weight,
          region.bias,
          eps,
          cudnn_enable),
      input,
      region);
}

} // namespace weft::dtensor::kernels
