#include "models/rotary.h"

#include <numbers>

#include <torch/torch.h>

namespace weft::models {

at::Tensor
rotary_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  const auto exponents = torch::arange(0, head_dim, 2, torch::kFloat) /
                         static_cast<double>(head_dim);
  auto plain = torch::pow(theta, exponents).reciprocal();
  if (scaling.type == RopeScaling::Type::kNone) {
    return plain;
  }
  auto lowered = plain / scaling.factor;
  if (scaling.type == RopeScaling::Type::kLinear) {
    return lowered;
  }
  const auto wavelengths = 2 * std::numbers::pi / plain;
  const auto fitting =
      static_cast<double>(scaling.original_max_position_embeddings) /
      wavelengths;
  const auto kept = ((fitting - scaling.low_freq_factor) /
                     (scaling.high_freq_factor - scaling.low_freq_factor))
                        .clamp(0, 1);
  return (1 - kept) * lowered + kept * plain;
}

RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t length) {
  const auto angles =
      torch::outer(torch::arange(length, torch::kFloat), frequencies);
  const auto both = torch::cat({angles, angles}, -1);
  return {both.cos(), both.sin()};
}

} // namespace weft::models
