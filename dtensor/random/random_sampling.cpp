#include "dtensor/random/random_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/empty_like.h>

#include "dtensor/random/random_arithmetic.h"
#include "dtensor/random/random_blocks.h"

namespace weft::dtensor {
namespace {

constexpr double kPi = 3.14159265358979323846;

__extension__ using uint128_t = unsigned __int128;

uint64_t high_product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<uint128_t>(a) * b >> 64);
}

double unit_of(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// The random numbers of one element. The first ones are from the block with the
// element's index. An algorithm that rejects numbers continues with blocks at a
// distance of 2^40, so up to 2^40 elements have blocks of their own.
class ElementRandom {
 public:
  /// `first` and `second` are the results of bits_of_blocks() for the element.
  ElementRandom(
      RandomKey key,
      uint64_t element,
      uint64_t first,
      uint64_t second)
      : key_(key), block_(element), pair_{second, first} {}

  uint64_t bits() {
    if (left_ == 0) {
      block_ += uint64_t{1} << 40;
      const auto block = philox(key_.seed, key_.stream, block_);
      pair_[1] = block.words[0] | uint64_t{block.words[1]} << 32;
      pair_[0] = block.words[2] | uint64_t{block.words[3]} << 32;
      left_ = 2;
    }
    return pair_[--left_];
  }

  /// Draws from U(0, 1), never 0 or 1.
  double uniform() { return unit_of(bits()); }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * kPi * uniform());
  }

 private:
  RandomKey key_;
  uint64_t block_;
  uint64_t pair_[2];
  int left_ = 2;
};

// The first random bits of up to kBlocksAtOnce elements. If there are fewer
// elements, the other entries have no meaning.
struct Bits {
  uint64_t elements[kBlocksAtOnce] = {};
  uint64_t first[kBlocksAtOnce];
  uint64_t second[kBlocksAtOnce];
};

// Calls use(bits, begin, count) for up to kBlocksAtOnce elements at a time.
template <class Use>
void for_each_bits(const at::Tensor& indices, RandomKey key, const Use& use) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t n = indices.numel();
  Bits bits;
  for (int64_t begin = 0; begin < n; begin += kBlocksAtOnce) {
    const int64_t count = std::min(n - begin, kBlocksAtOnce);
    std::copy_n(index + begin, count, bits.elements);
    bits_of_blocks(
        key.seed, key.stream, bits.elements, bits.first, bits.second);
    use(bits, begin, count);
  }
}

template <class T, class Sample>
at::Tensor
for_each(const at::Tensor& indices, RandomKey key, const Sample& sample) {
  const auto result =
      at::empty_like(indices, c10::CppTypeToScalarType<T>::value);
  auto* out = result.template mutable_data_ptr<T>();
  for_each_bits(
      indices, key, [&](const Bits& bits, int64_t begin, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          ElementRandom random(
              key, bits.elements[i], bits.first[i], bits.second[i]);
          out[begin + i] = sample(random, begin + i);
        }
      });
  return result;
}

// Returns sample(log(u)) for each element, with u from U(0, 1).
template <class Sample>
at::Tensor
for_each_log(const at::Tensor& indices, RandomKey key, const Sample& sample) {
  const auto result = at::empty_like(indices, at::kDouble);
  auto* out = result.mutable_data_ptr<double>();
  double numbers[kBlocksAtOnce];
  for_each_bits(
      indices, key, [&](const Bits& bits, int64_t begin, int64_t count) {
        for (int64_t i = 0; i < kBlocksAtOnce; ++i) {
          numbers[i] = unit_of(bits.first[i]);
        }
        vector_logs(numbers, numbers);
        for (int64_t i = 0; i < count; ++i) {
          out[begin + i] = sample(numbers[i]);
        }
      });
  return result;
}

// Returns number(block, lane) for each element. Four elements share a block.
template <class Number>
at::Tensor for_each_number(const at::Tensor& indices, const Number& number) {
  const auto result = at::empty_like(indices, at::kDouble);
  const auto* index = indices.const_data_ptr<int64_t>();
  auto* out = result.mutable_data_ptr<double>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    const auto element = static_cast<uint64_t>(index[i]);
    out[i] = number(element / 4, element % 4);
  }
  return result;
}

double poisson(ElementRandom& random, double rate) {
  if (!(rate > 0)) {
    return rate == 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
  }
  if (rate < 10) {
    const double limit = std::exp(-rate);
    double product = random.uniform();
    double count = 0;
    while (product > limit) {
      product *= random.uniform();
      ++count;
    }
    return count;
  }
  const double log_rate = std::log(rate);
  const double b = 0.931 + 2.53 * std::sqrt(rate);
  const double a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  const double v_r = 0.9277 - 3.6224 / (b - 2);
  while (true) {
    const double u = random.uniform() - 0.5;
    const double v = random.uniform();
    const double us = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= v_r) {
      return k;
    }
    if (k < 0 || (us < 0.013 && v > us)) {
      continue;
    }
    if (std::log(v) + std::log(inverse_alpha) - std::log(a / (us * us) + b) <=
        -rate + k * log_rate - std::lgamma(k + 1)) {
      return k;
    }
  }
}

// Adds up the geometrically distributed gaps between successes.
double binomial_by_gaps(ElementRandom& random, double count, double p) {
  const double log_q = std::log1p(-p);
  double successes = 0;
  double trials = 0;
  while (true) {
    trials += std::ceil(std::log(random.uniform()) / log_q);
    if (trials > count) {
      return successes;
    }
    ++successes;
  }
}

// Algorithm BTRS, for p <= 1/2 and count * p >= 10.
double binomial_by_rejection(ElementRandom& random, double count, double p) {
  const double spq = std::sqrt(count * p * (1 - p));
  const double b = 1.15 + 2.53 * spq;
  const double a = -0.0873 + 0.0248 * b + 0.01 * p;
  const double c = count * p + 0.5;
  const double v_r = 0.92 - 4.2 / b;
  const double alpha = (2.83 + 5.1 / b) * spq;
  const double log_odds = std::log(p / (1 - p));
  const double m = std::floor((count + 1) * p);
  const double h = std::lgamma(m + 1) + std::lgamma(count - m + 1);
  while (true) {
    const double u = random.uniform() - 0.5;
    const double v = random.uniform();
    const double us = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / us + b) * u + c);
    if (us >= 0.07 && v <= v_r) {
      return k;
    }
    if (k < 0 || k > count) {
      continue;
    }
    if (std::log(v * alpha / (a / (us * us) + b)) <=
        h - std::lgamma(k + 1) - std::lgamma(count - k + 1) +
            (k - m) * log_odds) {
      return k;
    }
  }
}

double binomial(ElementRandom& random, double count, double p) {
  if (!(count > 0) || !(p > 0)) {
    return count >= 0 && p >= 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
  }
  if (p >= 1) {
    return count;
  }
  if (p > 0.5) {
    return count - binomial(random, count, 1 - p);
  }
  return count * p >= 10 ? binomial_by_rejection(random, count, p)
                         : binomial_by_gaps(random, count, p);
}

double gamma(ElementRandom& random, double alpha) {
  if (alpha < 1) {
    const double scale = std::pow(random.uniform(), 1 / alpha);
    return alpha > 0 ? scale * gamma(random, alpha + 1) : 0;
  }
  const double d = alpha - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random.normal();
    const double y = 1 + c * x;
    if (y <= 0) {
      continue;
    }
    const double v = y * y * y;
    if (std::log(random.uniform()) < 0.5 * x * x + d * (1 - v + std::log(v))) {
      return d * v;
    }
  }
}

} // namespace

at::Tensor sample_uniform(const at::Tensor& indices, RandomKey key) {
  return for_each<double>(
      indices, key, [](auto& random, int64_t) { return random.uniform(); });
}

at::Tensor sample_filled_uniform(
    const at::Tensor& indices,
    RandomKey key,
    double from,
    double to) {
  return for_each_number(indices, [&](uint64_t block, uint64_t lane) {
    const auto four = uniform_block(key.seed, key.stream, block);
    return placed(four.numbers[lane], from, to - from);
  });
}

at::Tensor sample_filled_normal(
    const at::Tensor& indices,
    RandomKey key,
    double mean,
    double std) {
  return for_each_number(indices, [&](uint64_t block, uint64_t lane) {
    const auto four = normal_block(key.seed, key.stream, block);
    return placed(four.numbers[lane], mean, std);
  });
}

at::Tensor sample_integers(
    const at::Tensor& indices,
    RandomKey key,
    int64_t from,
    uint64_t range) {
  const auto result = at::empty_like(indices);
  auto* out = result.mutable_data_ptr<int64_t>();
  if (range != 0 && range <= uint64_t{1} << 32) {
    const auto* index = indices.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < indices.numel(); ++i) {
      const auto element = static_cast<uint64_t>(index[i]);
      const auto block = philox(key.seed, key.stream, element / 4);
      out[i] = integer_of(block.words[element % 4], from, range);
    }
    return result;
  }
  for_each_bits(
      indices, key, [&](const Bits& bits, int64_t begin, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          // The upper half of the product is as even as the remainder and needs
          // no division.
          const uint64_t above =
              range == 0 ? bits.first[i] : high_product(bits.first[i], range);
          out[begin + i] =
              static_cast<int64_t>(static_cast<uint64_t>(from) + above);
        }
      });
  return result;
}

at::Tensor
sample_exponential(const at::Tensor& indices, RandomKey key, double lambda) {
  return for_each_log(
      indices, key, [&](double log_u) { return -log_u / lambda; });
}

at::Tensor
sample_geometric(const at::Tensor& indices, RandomKey key, double p) {
  const double log_q = std::log1p(-p);
  return for_each_log(
      indices, key, [&](double log_u) { return std::ceil(log_u / log_q); });
}

at::Tensor sample_cauchy(
    const at::Tensor& indices,
    RandomKey key,
    double median,
    double sigma) {
  return for_each<double>(indices, key, [&](auto& random, int64_t) {
    return median + sigma * std::tan(kPi * (random.uniform() - 0.5));
  });
}

at::Tensor sample_log_normal(
    const at::Tensor& indices,
    RandomKey key,
    double mean,
    double std) {
  return for_each<double>(indices, key, [&](auto& random, int64_t) {
    return std::exp(mean + std * random.normal());
  });
}

at::Tensor sample_poisson(
    const at::Tensor& indices,
    RandomKey key,
    const at::Tensor& rate) {
  const auto* rates = rate.const_data_ptr<double>();
  return for_each<double>(indices, key, [&](auto& random, int64_t i) {
    return poisson(random, rates[i]);
  });
}

at::Tensor sample_binomial(
    const at::Tensor& indices,
    RandomKey key,
    const at::Tensor& count,
    const at::Tensor& probability) {
  const auto* counts = count.const_data_ptr<double>();
  const auto* p = probability.const_data_ptr<double>();
  return for_each<double>(indices, key, [&](auto& random, int64_t i) {
    return binomial(random, counts[i], p[i]);
  });
}

at::Tensor sample_gamma(
    const at::Tensor& indices,
    RandomKey key,
    const at::Tensor& alpha) {
  const auto* alphas = alpha.const_data_ptr<double>();
  return for_each<double>(indices, key, [&](auto& random, int64_t i) {
    return gamma(random, alphas[i]);
  });
}

} // namespace weft::dtensor
