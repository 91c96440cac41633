// CPU kernels for aten::_fused_rms_norm and its gradient. libtorch has such
// kernels only for CUDA and composes rms_norm from eight other ops elsewhere.
// With a CPU kernel it uses its autograd formula of the fused op on the CPU,
// too.

#include <array>
#include <limits>
#include <tuple>

#include <ATen/OpMathType.h>
#include <ATen/native/layer_norm.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/fused/cpu_loops.h"
#include "dtensor/fused/fused_ops.h"
#include "dtensor/fused/rows.h"

namespace weft::dtensor {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

/// The number of rows whose parts of the weight gradient one thread adds up.
constexpr int64_t kChunk = 64;

bool has(const OptionalTensor& weight) {
  return weight && weight->defined();
}

at::Tensor contiguous_weight(
    const OptionalTensor& weight,
    at::IntArrayRef normalized_shape,
    const at::Tensor& input) {
  return has(weight) ? weight->contiguous()
                     : at::ones(normalized_shape, input.options());
}

std::optional<at::ScalarType> wider_dtype(
    const at::Tensor& input,
    const OptionalTensor& weight) {
  if (!has(weight) || weight->scalar_type() == input.scalar_type()) {
    return std::nullopt;
  }
  return at::promote_types(input.scalar_type(), weight->scalar_type());
}

at::Tensor rows_of(const at::Tensor& input, at::IntArrayRef normalized_shape) {
  const auto tail = static_cast<int64_t>(normalized_shape.size());
  return fused::with_rows(
      tail == 1 ? input : input.contiguous().flatten(input.dim() - tail));
}

double epsilon(const at::Tensor& input, std::optional<double> eps) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "rms_norm", [&] {
        return eps.value_or(
            static_cast<double>(std::numeric_limits<scalar_t>::epsilon()));
      });
}

Pair rms_norm_on_cpu(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const OptionalTensor& weight,
    std::optional<double> eps) {
  at::native::_check_rms_norm_inputs_symint(
      input,
      c10::fromIntArrayRefSlow(normalized_shape),
      has(weight) ? *weight : at::Tensor());
  if (const auto wider = wider_dtype(input, weight)) {
    auto [output, rstd] = rms_norm_on_cpu(
        input.to(*wider),
        normalized_shape,
        weight->to(*wider),
        epsilon(input, eps));
    return {output.to(input.scalar_type()), rstd};
  }
  const double e = epsilon(input, eps);
  auto sizes = input.sizes().vec();
  std::fill_n(sizes.rbegin(), normalized_shape.size(), 1);
  auto rstd = at::empty(
      sizes, input.options().dtype(at::toOpMathType(input.scalar_type())));
  auto output = at::empty(input.sizes(), input.options());
  if (!input.is_meta() && input.numel() != 0) {
    const auto x = rows_of(input, normalized_shape);
    const auto w = contiguous_weight(weight, normalized_shape, input);
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, input.scalar_type(), "rms_norm", [&] {
          using Number = fused::Compute<scalar_t>;
          const fused::RmsNormLoop<scalar_t> loop{
              x.const_data_ptr<scalar_t>(),
              w.const_data_ptr<scalar_t>(),
              output.mutable_data_ptr<scalar_t>(),
              rstd.mutable_data_ptr<Number>(),
              *fused::row_stride(x),
              w.numel(),
              e};
          fused::run_rows(loop, rstd.numel(), w.numel());
        });
  }
  return {fused::laid_out_like(input, output), rstd};
}

template <class Number>
void add_up(at::Tensor& parts) {
  auto* sums = parts.mutable_data_ptr<Number>();
  for (int64_t chunk = 1; chunk < parts.size(0); ++chunk) {
    const auto* part = sums + chunk * parts.size(1);
    for (int64_t i = 0; i < parts.size(1); ++i) {
      sums[i] += part[i];
    }
  }
}

// Returns the contiguous gradient of the input, and the gradient of the weight
// in the dtype of computation.
Pair run_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& rstd) {
  const int64_t rows = rstd.numel();
  const int64_t chunks = (rows + kChunk - 1) / kChunk;
  auto input_grad = at::empty(grad.sizes(), input.options());
  auto parts = at::empty({chunks, weight.numel()}, rstd.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "rms_norm_backward", [&] {
        using Number = fused::Compute<scalar_t>;
        const fused::RmsNormBackwardLoop<scalar_t> loop{
            grad.const_data_ptr<scalar_t>(),
            input.const_data_ptr<scalar_t>(),
            weight.const_data_ptr<scalar_t>(),
            rstd.const_data_ptr<Number>(),
            input_grad.mutable_data_ptr<scalar_t>(),
            parts.mutable_data_ptr<Number>(),
            *fused::row_stride(grad),
            *fused::row_stride(input),
            weight.numel(),
            rows,
            kChunk};
        fused::run_rows(loop, chunks, kChunk * weight.numel());
        add_up<Number>(parts);
      });
  return {input_grad, parts.select(0, 0)};
}

Pair rms_norm_on_cpu_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const at::Tensor& rstd,
    const OptionalTensor& weight,
    std::array<bool, 2> wanted) {
  const bool wants_weight = wanted[1] && has(weight);
  if (const auto wider = wider_dtype(input, weight)) {
    auto [input_grad, weight_grad] = rms_norm_on_cpu_backward(
        grad.to(*wider),
        input.to(*wider),
        normalized_shape,
        rstd,
        weight->to(*wider),
        wanted);
    return {
        wanted[0] ? input_grad.to(input.scalar_type()) : at::Tensor(),
        wants_weight ? weight_grad.to(weight->scalar_type()) : at::Tensor()};
  }
  Pair result;
  auto& [input_grad, weight_grad] = result;
  if (input.is_meta() || input.numel() == 0) {
    input_grad = at::empty_like(input);
    weight_grad = at::zeros(normalized_shape, input.options());
  } else {
    const auto parts = run_backward(
        rows_of(grad, normalized_shape),
        rows_of(input, normalized_shape),
        contiguous_weight(weight, normalized_shape, input),
        rstd.contiguous());
    input_grad =
        fused::laid_out_like(input, std::get<0>(parts).view(input.sizes()));
    weight_grad =
        std::get<1>(parts).view(normalized_shape).to(input.scalar_type());
  }
  return {
      wanted[0] ? input_grad : at::Tensor(),
      wants_weight ? weight_grad : at::Tensor()};
}

struct RmsNormRegistration {
  torch::Library library{
      torch::Library::IMPL,
      "aten",
      std::nullopt,
      __FILE__,
      __LINE__};

  RmsNormRegistration() {
    using c10::DispatchKey;
    for (const auto key : {DispatchKey::CPU, DispatchKey::Meta}) {
      library.impl(
          "_fused_rms_norm", torch::dispatch(key, TORCH_FN(rms_norm_on_cpu)));
      library.impl(
          "_fused_rms_norm_backward",
          torch::dispatch(key, TORCH_FN(rms_norm_on_cpu_backward)));
    }
  }
};

} // namespace

void register_rms_norm() {
  static const RmsNormRegistration registration;
}

} // namespace weft::dtensor
