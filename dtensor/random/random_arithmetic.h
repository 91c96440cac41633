#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// The random numbers themselves, in arithmetic that gives the same bits on
// every processor: this header is compiled for the CPU and, by cuda/, for the
// GPU. See Note [Same bits everywhere].

#ifdef __CUDACC__
#define WEFT_HOST_DEVICE __host__ __device__
#else
#define WEFT_HOST_DEVICE
#endif

namespace weft::dtensor {

// Note [Same bits everywhere]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// log, sin and cos of a C library differ between libraries, processors (with
// and without fused multiply-add) and the GPU. Here they are polynomials in
// additions, multiplications, divisions and square roots of doubles, which IEEE
// 754 rounds in one way only, as long as no compiler fuses a product with a
// sum: on the GPU each operation is an intrinsic that it must not fuse, on the
// CPU this code is compiled with -ffp-contract=off. Their errors, below 1e-11,
// vanish when the result is rounded to a float.

WEFT_HOST_DEVICE inline double times(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

WEFT_HOST_DEVICE inline double plus(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

WEFT_HOST_DEVICE inline double over(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

WEFT_HOST_DEVICE inline double square_root(double a) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

/// The four words of elements [4 * block, 4 * block + 4).
struct PhiloxBlock {
  uint32_t words[4];
};

/// Computes Philox 4x32-10 with key `seed` and counter (block, stream).
/// Source: Salmon et al. (2011); ATen/core/PhiloxRNGEngine.h.
WEFT_HOST_DEVICE inline PhiloxBlock
philox(uint64_t seed, uint64_t stream, uint64_t block) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(block);
  uint32_t c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream);
  uint32_t c3 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53U} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// Returns an integer from [from, from + range), with range in [1, 2^32], as
/// uniform as 32 bits allow.
WEFT_HOST_DEVICE inline int64_t
integer_of(uint32_t word, int64_t from, uint64_t range) {
  return static_cast<int64_t>(
      static_cast<uint64_t>(from) + (word * range >> 32));
}

/// The four floats of elements [4 * block, 4 * block + 4).
struct NumberBlock {
  float numbers[4];
};

/// Draws from U[0, 1): exact multiples of 2^-24.
WEFT_HOST_DEVICE inline NumberBlock
uniform_block(uint64_t seed, uint64_t stream, uint64_t block) {
  const PhiloxBlock bits = philox(seed, stream, block);
  NumberBlock result;
  for (int i = 0; i < 4; ++i) {
    result.numbers[i] = static_cast<float>(bits.words[i] >> 8) * 0x1p-24f;
  }
  return result;
}

/// Returns log(m) for m in [sqrt(1/2), sqrt(2)].
WEFT_HOST_DEVICE inline double log_near_one(double m) {
  // 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.172.
  const double s = over(plus(m, -1.0), plus(m, 1.0));
  const double z = times(s, s);
  double sum = 1.0 / 15;
  sum = plus(times(sum, z), 1.0 / 13);
  sum = plus(times(sum, z), 1.0 / 11);
  sum = plus(times(sum, z), 1.0 / 9);
  sum = plus(times(sum, z), 1.0 / 7);
  sum = plus(times(sum, z), 1.0 / 5);
  sum = plus(times(sum, z), 1.0 / 3);
  sum = plus(times(sum, z), 1.0);
  return times(times(2.0, s), sum);
}

/// Returns log(n / 2^24) for n in [1, 2^24].
WEFT_HOST_DEVICE inline double log_of_fraction(uint32_t n) {
  // n = m * 2^exponent with m in [sqrt(1/2), sqrt(2)).
  double m = static_cast<double>(n);
  uint64_t bits;
  std::memcpy(&bits, &m, sizeof(bits));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL;
  std::memcpy(&m, &bits, sizeof(m));
  if (m > 1.4142135623730951) {
    m = times(m, 0.5);
    ++exponent;
  }
  return plus(times(exponent - 24, 0.6931471805599453), log_near_one(m));
}

struct SinCos {
  double sin;
  double cos;
};

/// Returns sine and cosine of the angle 2 pi n / 2^24 for n in [-2^21, 2^21],
/// an eighth of a turn.
WEFT_HOST_DEVICE inline SinCos sin_cos_near_zero(int32_t n) {
  const double x = times(times(n, 0x1p-24), 6.283185307179586);
  const double z = times(x, x);
  double sin = 1.0 / 6227020800.0;
  sin = plus(times(sin, z), -1.0 / 39916800.0);
  sin = plus(times(sin, z), 1.0 / 362880.0);
  sin = plus(times(sin, z), -1.0 / 5040.0);
  sin = plus(times(sin, z), 1.0 / 120.0);
  sin = plus(times(sin, z), -1.0 / 6.0);
  sin = plus(times(sin, z), 1.0);
  sin = times(sin, x);
  double cos = 1.0 / 479001600.0;
  cos = plus(times(cos, z), -1.0 / 3628800.0);
  cos = plus(times(cos, z), 1.0 / 40320.0);
  cos = plus(times(cos, z), -1.0 / 720.0);
  cos = plus(times(cos, z), 1.0 / 24.0);
  cos = plus(times(cos, z), -0.5);
  cos = plus(times(cos, z), 1.0);
  return {sin, cos};
}

/// Returns sine and cosine of the angle 2 pi n / 2^24 for n in [0, 2^24).
WEFT_HOST_DEVICE inline SinCos sin_cos_of_turn(uint32_t n) {
  // The nearest quarter turn, and the exact rest in [-1/8, 1/8] turns.
  const uint32_t quarter = (n + (1U << 21)) >> 22;
  const auto [sin, cos] = sin_cos_near_zero(
      static_cast<int32_t>(n) - static_cast<int32_t>(quarter << 22));
  switch (quarter & 3U) {
    case 1:
      return {cos, -sin};
    case 2:
      return {-sin, -cos};
    case 3:
      return {-cos, sin};
    default:
      return {sin, cos};
  }
}

/// Draws from N(0, 1) by the Box-Muller method, two numbers from two.
WEFT_HOST_DEVICE inline NumberBlock
normal_block(uint64_t seed, uint64_t stream, uint64_t block) {
  const PhiloxBlock bits = philox(seed, stream, block);
  NumberBlock result;
  for (int i = 0; i < 4; i += 2) {
    // 1 - u, which is never 0.
    const uint32_t fraction = (1U << 24) - (bits.words[i] >> 8);
    const double radius = square_root(times(-2.0, log_of_fraction(fraction)));
    const SinCos angle = sin_cos_of_turn(bits.words[i + 1] >> 8);
    result.numbers[i] = static_cast<float>(times(radius, angle.cos));
    result.numbers[i + 1] = static_cast<float>(times(radius, angle.sin));
  }
  return result;
}

/// Scales and shifts a number before it is rounded to the tensor's dtype.
WEFT_HOST_DEVICE inline double
placed(float number, double shift, double scale) {
  return plus(shift, times(scale, number));
}

} // namespace weft::dtensor
