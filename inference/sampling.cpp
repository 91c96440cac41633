#include "inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <torch/torch.h>

#include "dtensor/random/random.h"
#include "dtensor/random/random_arithmetic.h"
#include "mesh/error/error.h"
#include "train/trainer.h"

namespace weft::inference {
namespace {

constexpr double kNoChance = -std::numeric_limits<double>::infinity();

// Divides scores by a temperature. A tiny temperature makes quotients that
// exceed float. So the distances to the largest score are divided: 0 for the
// largest, and -inf, which is probability 0, for distant ones. Only the
// quotient of the largest, which is added to all, must be kept finite.
at::Tensor divided(const at::Tensor& scores, double temperature) {
  constexpr double kLargest = 1e30;
  const auto exact = scores.to(at::kDouble);
  const auto largest = exact.amax(-1, /*keepdim=*/true);
  const auto added = (largest / temperature).clamp(-kLargest, kLargest);
  return ((exact - largest) / temperature + added).to(at::kFloat);
}

void check_finite(const at::Tensor& logits, int64_t position) {
  const auto largest = logits.max().item<double>(); // NaN if one logit is NaN
  if (!std::isfinite(largest)) {
    mesh::throw_error<train::NonFiniteError>(fmt::format(
        "the largest logit of token {} is {}, because the weights or the "
        "model's outputs in this dtype are not finite.",
        position,
        std::isnan(largest) ? std::abs(largest) : largest)); // Avoids "-nan".
  }
}

at::Tensor keep_top_k(const at::Tensor& scores, int64_t count) {
  const auto values =
      std::get<0>(scores.topk(std::min(count, scores.size(-1)), -1));
  return scores.masked_fill(
      scores < values.narrow(-1, values.size(-1) - 1, 1), kNoChance);
}

at::Tensor keep_top_p(const at::Tensor& scores, double probability) {
  // The sort is stable, so that equally likely tokens are removed in the same
  // order on all devices.
  const auto [sorted, order] =
      at::sort(scores, /*stable=*/true, /*dim=*/-1, /*descending=*/false);
  auto removed = sorted.softmax(-1).cumsum(-1) <= 1 - probability;
  removed.narrow(-1, removed.size(-1) - 1, 1).fill_(false);
  return scores.masked_fill(removed.scatter(-1, order, removed), kNoChance);
}

} // namespace

at::Tensor warp_logits(
    const at::Tensor& logits,
    const SamplingOptions& options) {
  auto scores = logits.to(at::kFloat);
  if (options.temperature != 0 && options.temperature != 1) {
    scores = divided(scores, options.temperature);
  }
  if (options.top_k > 0) {
    scores = keep_top_k(scores, options.top_k);
  }
  if (options.top_p < 1) {
    scores = keep_top_p(scores, options.top_p);
  }
  return scores;
}

double sampling_number(uint64_t seed, int64_t sample, int64_t position) {
  const auto block = dtensor::philox(
      seed,
      dtensor::stream_of(fmt::format("generate {}", sample)),
      static_cast<uint64_t>(position));
  const uint64_t bits =
      (static_cast<uint64_t>(block.words[0]) << 32 | block.words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

int64_t choose_token(
    const at::Tensor& logits,
    const SamplingOptions& options,
    int64_t sample,
    int64_t position) {
  check_finite(logits, position);
  if (options.temperature == 0) {
    return logits.argmax().item<int64_t>();
  }
  const auto sums = warp_logits(logits, options)
                        .to(at::kDouble)
                        .softmax(-1)
                        .cumsum(-1)
                        .contiguous();
  const auto* begin = sums.const_data_ptr<double>();
  const auto* end = begin + sums.numel();
  const double number =
      sampling_number(options.seed, sample, position) * *(end - 1);
  // The first token whose sum is above `number` has a probability above 0.
  return std::upper_bound(begin, end - 1, number) - begin;
}

} // namespace weft::inference
