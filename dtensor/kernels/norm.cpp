// Norms over the last dims. The other dims may be sharded (sequence
// parallelism). The gradients of weight and bias are then Partial.

#include <algorithm>

#include <ATen/ops/layer_norm_native.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/region.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/graph_nodes.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "dtensor/tensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

struct NormRegion {
  at::Tensor input;
  std::optional<at::Tensor> weight;
  std::optional<at::Tensor> bias;
  /// The weight that the caller passed. Null if there is none.
  const at::Tensor* parameter = nullptr;
  std::optional<DTensorSpec> output;
  /// The sizes of the full input.
  c10::DimVector sizes;
  c10::DimVector strides;
  OpLayout layout;
  std::string name;
};

bool is_ready(const DTensorImpl* impl) {
  return impl && !impl->deferred && !impl->copied_view &&
         impl->spec().mesh_ndim() != 0;
}

// Returns true if there is no parameter, or if it is replicated on the mesh of
// the input and no style sets the input placement of the norm.
bool is_ready_parameter(
    const std::optional<at::Tensor>& parameter,
    const DTensorImpl& input) {
  if (!parameter || !parameter->defined()) {
    return true;
  }
  const auto* impl = dtensor_impl(*parameter);
  return is_ready(impl) && impl->spec().is_replicated() &&
         impl->spec().mesh() == input.spec().mesh() &&
         !(impl->parameter_info && impl->parameter_info->norm.input);
}

bool needs_no_move(
    const at::Tensor& input,
    size_t normalized_dims,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias) {
  const auto* impl = dtensor_impl(input);
  if (!is_ready(impl) || !input.is_contiguous() ||
      !is_ready_parameter(weight, *impl) || !is_ready_parameter(bias, *impl)) {
    return false;
  }
  const auto free_dims = input.dim() - static_cast<int64_t>(normalized_dims);
  return std::ranges::all_of(
      impl->spec().placements(), [&](const Placement& placement) {
        return placement.is_replicate() ||
               (placement.is_shard() && placement.tensor_dim() < free_dims);
      });
}

bool is_recorded(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias) {
  return records_graph(input) || (weight && records_graph(*weight)) ||
         (bias && records_graph(*bias));
}

std::optional<at::Tensor> local_parameter(
    const std::optional<at::Tensor>& parameter) {
  const auto* impl = parameter ? dtensor_impl(*parameter) : nullptr;
  return impl ? std::optional(impl->local()) : std::nullopt;
}

template <class Norm>
at::Tensor norm_of_locals(
    const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    const Norm& norm) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto* impl = dtensor_impl(input);
  return make_dtensor(
      norm(impl->local(), local_parameter(weight), local_parameter(bias)),
      impl->spec(),
      input.sizes(),
      input.strides());
}

NormRegion enter_norm(
    const at::Tensor& input,
    size_t normalized_dims,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias) {
  const auto spec = common_spec(
      {&input, weight ? &*weight : nullptr, bias ? &*bias : nullptr});
  const auto* info = weight ? dtensor_impl(*weight) : nullptr;
  const auto layout =
      info && info->parameter_info ? info->parameter_info->norm : OpLayout();
  check_operands(
      "norm", spec, {{input, layout.input.has_value()}, weight, bias});
  const auto x = place(input, spec, layout.input);
  const auto free_dims = x.dim() - static_cast<int64_t>(normalized_dims);
  const auto wanted = layout.desired_input.value_or(
      layout.input.value_or(spec_of(x).placements()));
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
  region.sizes = x.sizes();
  region.strides = x.strides();
  region.layout = layout;
  region.parameter = weight ? &*weight : nullptr;
  region.name = weight ? label("norm", *weight) : "norm";
  region.output = spec.with(placements);
  region.input = to_local_impl(
      x,
      *region.output,
      placements,
      region.name,
      {.asked = layout.input.has_value()});
  if (weight && weight->defined()) {
    region.weight =
        to_local_impl(place(*weight, spec), whole, parameter_grad, region.name);
  }
  if (bias && bias->defined()) {
    region.bias =
        to_local_impl(place(*bias, spec), whole, parameter_grad, region.name);
  }
  return region;
}

at::Tensor leave_norm(const at::Tensor& local, const NormRegion& region) {
  const auto& sizes = region.sizes;
  auto output = from_local_impl(
      local,
      *region.output,
      sizes,
      dense_strides(sizes, region.strides),
      region.name);
  if (region.layout.output) {
    output = redistribute_to(
        output,
        region.output->with(normalized(*region.layout.output, output.dim())),
        region.name);
  }
  use_in_backward(output, {region.parameter});
  return output;
}

// Calls before_forward_use(), which common_spec() does otherwise. Norms that
// need no redistribution do not call common_spec().
void before_use_of(
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias) {
  for (const auto* parameter : {&weight, &bias}) {
    if (*parameter) {
      before_forward_use(**parameter);
    }
  }
}

} // namespace

at::Tensor rms_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    std::optional<double> eps) {
  before_use_of(weight, {});
  if (needs_no_move(input, normalized_shape.size(), weight, {}) &&
      !is_recorded(input, weight, {})) {
    return norm_of_locals(
        input,
        weight,
        {},
        [&](const auto& local, const auto& gain, const auto&) {
          return at::rms_norm_symint(local, normalized_shape, gain, eps);
        });
  }
  const auto region =
      enter_norm(input, normalized_shape.size(), weight, std::nullopt);
  return leave_norm(
      at::rms_norm_symint(region.input, normalized_shape, region.weight, eps),
      region);
}

at::Tensor layer_norm(
    const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool cudnn_enable) {
  before_use_of(weight, bias);
  if (needs_no_move(input, normalized_shape.size(), weight, bias)) {
    // With a graph, libtorch's composite op calls native_layer_norm, which has
    // a sharding rule and a gradient.
    return is_recorded(input, weight, bias)
               ? at::native::layer_norm_symint(
                     input, normalized_shape, weight, bias, eps, cudnn_enable)
               : norm_of_locals(
                     input,
                     weight,
                     bias,
                     [&](const auto& local, const auto& gain, const auto& b) {
                       return at::layer_norm_symint(
                           local, normalized_shape, gain, b, eps, cudnn_enable);
                     });
  }
  const auto region = enter_norm(input, normalized_shape.size(), weight, bias);
  return leave_norm(
      at::layer_norm_symint(
          region.input,
          normalized_shape,
          region.weight,
          region.bias,
          eps,
          cudnn_enable),
      region);
}

} // namespace weft::dtensor::kernels
