// y = x W^T + b. The weight stays where it lies; per mesh dim:
//   W S(0) (column-parallel)  x whole,       y cut in its last dim
//   W S(1) (row-parallel)     x cut in its last dim, y a pending sum
//   W R                       x as it is (batch or sequence may be cut)
// Source: Megatron-LM's f and g; torch/distributed/tensor/parallel/style.py.

#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/kernels/kernels.h"
#include "dtensor/parameter_info.h"

namespace weft::dtensor::kernels {
namespace {

struct LinearPlacements {
  Placements weight, bias, input, output;
  Placements weight_grad, bias_grad, input_grad;

  void push(
      Placement w,
      Placement b,
      Placement x,
      Placement y,
      Placement gw,
      Placement gb,
      Placement gx) {
    weight.push_back(w);
    bias.push_back(b);
    input.push_back(x);
    output.push_back(y);
    weight_grad.push_back(gw);
    bias_grad.push_back(gb);
    input_grad.push_back(gx);
  }
};

LinearPlacements plan_linear(
    const Placements& weight,
    const Placements& input,
    int64_t input_ndim) {
  const auto r = Replicate();
  const auto p = Partial();
  const auto last = Shard(input_ndim - 1);
  LinearPlacements plan;
  for (size_t i = 0; i < weight.size(); ++i) {
    if (weight[i].is_shard(0)) {
      plan.push(Shard(0), Shard(0), r, last, Shard(0), Shard(0), p);
    } else if (weight[i].is_shard(1)) {
      plan.push(Shard(1), r, last, p, Shard(1), r, last);
    } else if (input[i].is_shard() && input[i] != last) {
      plan.push(r, r, input[i], input[i], p, p, input[i]);
    } else {
      plan.push(r, r, r, r, r, r, r);
    }
  }
  return plan;
}

at::Tensor wrap_output(
    const at::Tensor& local,
    const at::Tensor& input,
    const at::Tensor& weight,
    const DTensorSpec& spec,
    const std::string& name) {
  auto sizes = input.sizes().vec();
  sizes.back() = weight.size(0);
  if (weight.dim() == 1) {
    sizes.pop_back();
  }
  return leave_local(local, spec, sizes, row_major_strides(sizes), name);
}

Placements normalized(const Placements& placements, int64_t ndim) {
  Placements result;
  for (const auto& placement : placements) {
    result.push_back(placement.normalized(ndim));
  }
  return result;
}

} // namespace

at::Tensor linear(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  const auto spec = common_spec({&weight, &input});
  const auto* weight_impl = dtensor_impl(weight);
  const OpLayout layout = weight_impl && weight_impl->parameter_info
                              ? weight_impl->parameter_info->linear
                              : OpLayout();
  check_operands(
      "linear", spec, {{input, layout.input.has_value()}, weight, bias});
  const auto x = place(input, spec, layout.input);
  const auto w = place(weight, spec);
  TORCH_CHECK_VALUE(
      w.dim() == 2 && x.dim() >= 1 && x.size(-1) == w.size(1),
      "[linear] input's last dim == weight's second: input ",
      x.sizes(),
      " vs weight ",
      w.sizes(),
      " \"",
      parameter_name(weight),
      "\".");
  const auto name = label("linear", weight);
  const auto plan =
      plan_linear(spec_of(w).placements(), spec_of(x).placements(), x.dim());
  const bool has_bias = bias && bias->defined();
  const auto output_spec = spec.with(plan.output);
  const bool bias_inside = has_bias && !output_spec.has_partial();

  auto x_local = enter_local(
      x,
      spec.with(plan.input),
      plan.input_grad,
      name,
      /*asked=*/layout.input.has_value());
  auto w_local = enter_local(w, spec.with(plan.weight), plan.weight_grad, name);
  at::Tensor b;
  std::optional<at::Tensor> b_local;
  if (has_bias) {
    b = place(*bias, spec);
    if (bias_inside) {
      b_local = enter_local(b, spec.with(plan.bias), plan.bias_grad, name);
    }
  }
  auto output = wrap_output(
      at::linear(x_local, w_local, b_local), x, w, output_spec, name);
  if (layout.output) {
    output = redistribute_to(
        output, spec.with(normalized(*layout.output, output.dim())), name);
  } else if (has_bias && !bias_inside) {
    output = redistribute_to(output, output_spec.without_partial(), name);
  }
  return has_bias && !bias_inside ? output + b : output;
}

} // namespace weft::dtensor::kernels
