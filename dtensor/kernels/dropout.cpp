// Dropout and related ops. A rank draws only its shard of the mask, and the
// mask is the same on every mesh: see Note [Random ops]. A Partial is
// multiplied by the mask without a reduction.

#include <cmath>

#include <ATen/ops/alpha_dropout_native.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/feature_alpha_dropout_native.h>
#include <ATen/ops/feature_dropout_native.h>
#include <torch/torch.h>

#include "dtensor/kernels/random_ops.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

void check_p(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "[dropout] 0 <= p <= 1: ", p, ".");
}

bool is_placed(const at::Tensor& tensor) {
  return spec_of(tensor).mesh_ndim() != 0;
}

// Returns a mask: 1 for elements of `input` that stay, 0 for the others. With
// `features` it has one number per channel: [N, C, 1, ...].
at::Tensor keep_mask(
    const at::Tensor& input,
    double p,
    bool features,
    at::ScalarType dtype) {
  auto spec = spec_of(input).without_partial();
  auto sizes = input.sizes().vec();
  auto strides = dense_strides(input.sizes(), input.strides());
  if (features) {
    TORCH_CHECK_VALUE(
        input.dim() >= 2,
        "[feature_dropout] dims of input >= 2: ",
        input.dim(),
        ".");
    std::fill(sizes.begin() + 2, sizes.end(), 1);
    strides = row_major_strides(sizes);
    for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
      const auto& placement = spec.placement(i);
      if (placement.is_shard() && placement.tensor_dim() >= 2) {
        spec = spec.with(i, Replicate());
      }
    }
  }
  return draw_dtensor(
      spec,
      sizes,
      strides,
      input.options().dtype(dtype),
      {Draw::Kind::kBernoulli, 1 - p});
}

struct Noise {
  at::Tensor factor;
  /// The term to add after the multiplication. Undefined for plain dropout.
  at::Tensor shift;
};

// Alpha dropout replaces dropped elements so that mean and variance are kept.
// Source: Klambauer et al., Self-Normalizing Neural Networks (2017).
Noise make_noise(const at::Tensor& input, double p, bool features, bool alpha) {
  const at::NoGradGuard no_grad;
  auto mask = keep_mask(input, p, features, input.scalar_type());
  if (!alpha) {
    return {mask.div_(1 - p), {}};
  }
  constexpr double kAlpha = 1.7580993408473766;
  const double a = 1 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  const auto shift = mask.add(-1).mul_(kAlpha * a).add_(kAlpha * a * p);
  return {mask.mul_(a), shift};
}

bool leaves_input(const at::Tensor& input, double p, bool train) {
  check_p(p);
  return p == 0 || !train || input.numel() == 0;
}

at::Tensor
drop(const at::Tensor& input, double p, bool train, bool features, bool alpha) {
  if (leaves_input(input, p, train)) {
    return input;
  }
  if (p == 1) {
    return input * 0;
  }
  const auto noise = make_noise(input, p, features, alpha);
  const auto output = input * noise.factor;
  return alpha ? output + noise.shift : output;
}

at::Tensor& drop_inplace(
    at::Tensor& input,
    double p,
    bool train,
    bool features,
    bool alpha) {
  if (leaves_input(input, p, train)) {
    return input;
  }
  if (p == 1) {
    return input.zero_();
  }
  const auto noise = make_noise(input, p, features, alpha);
  input.mul_(noise.factor);
  return alpha ? input.add_(noise.shift) : input;
}

} // namespace

std::tuple<at::Tensor, at::Tensor>
native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const at::AutoDispatchBelowADInplaceOrView below;
  check_p(p);
  const bool drops = train.value_or(true);
  const auto mask =
      keep_mask(input, drops ? p : 0, /*features=*/false, at::kBool);
  const double scale = !drops ? 1 : p == 1 ? 0 : 1 / (1 - p);
  return {input * mask * scale, mask};
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop(input, p, train, false, false)
                          : at::native::dropout(input, p, train);
}

at::Tensor feature_dropout(const at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop(input, p, train, true, false)
                          : at::native::feature_dropout(input, p, train);
}

at::Tensor alpha_dropout(const at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop(input, p, train, false, true)
                          : at::native::alpha_dropout(input, p, train);
}

at::Tensor
feature_alpha_dropout(const at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop(input, p, train, true, true)
                          : at::native::feature_alpha_dropout(input, p, train);
}

at::Tensor& dropout_(at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop_inplace(input, p, train, false, false)
                          : at::native::dropout_(input, p, train);
}

at::Tensor& feature_dropout_(at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop_inplace(input, p, train, true, false)
                          : at::native::feature_dropout_(input, p, train);
}

at::Tensor& alpha_dropout_(at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop_inplace(input, p, train, false, true)
                          : at::native::alpha_dropout_(input, p, train);
}

at::Tensor& feature_alpha_dropout_(at::Tensor& input, double p, bool train) {
  return is_placed(input) ? drop_inplace(input, p, train, true, true)
                          : at::native::feature_alpha_dropout_(input, p, train);
}

at::Tensor rrelu_with_noise(
    const at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    std::optional<at::Generator> generator) {
  check_no_generator("rrelu_with_noise", generator);
  const at::AutoDispatchBelowADInplaceOrView below;
  const double a = lower.toDouble();
  const double b = upper.toDouble();
  if (!training) {
    return at::leaky_relu(self, (a + b) / 2);
  }
  const auto slope = draw_dtensor(
      spec_of(self),
      self.sizes(),
      dense_strides(self.sizes(), self.strides()),
      self.options(),
      {Draw::Kind::kUniform, a, b});
  const auto factor = slope.masked_fill(self.gt(0), 1);
  write_value(noise, factor);
  return self * factor;
}

at::Tensor& rrelu_with_noise_(
    at::Tensor& self,
    at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    std::optional<at::Generator> generator) {
  const at::AutoDispatchBelowADInplaceOrView below;
  write_value(
      self,
      kernels::rrelu_with_noise(
          self, noise, lower, upper, training, std::move(generator)));
  return self;
}

} // namespace weft::dtensor::kernels
