// Loops over arrays, which the compiler vectorizes. The bits do not depend on
// the vector width: see Note [Same bits everywhere].

#include "dtensor/random/random_blocks.h"

#include <bit>

#include "base/for_each_processor.h"
#include "dtensor/random/random_arithmetic.h"

namespace weft::dtensor {
namespace {

constexpr auto kLanes = kBlocksAtOnce;

struct Words {
  alignas(64) uint32_t words[4][kLanes];
};

WEFT_INLINE void
start(Words& w, int64_t lane, uint64_t block, uint64_t stream) {
  w.words[0][lane] = static_cast<uint32_t>(block);
  w.words[1][lane] = static_cast<uint32_t>(block >> 32);
  w.words[2][lane] = static_cast<uint32_t>(stream);
  w.words[3][lane] = static_cast<uint32_t>(stream >> 32);
}

WEFT_INLINE void run_rounds(Words& w, uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t product0 = uint64_t{0xD2511F53U} * w.words[0][i];
      const uint64_t product1 = uint64_t{0xCD9E8D57U} * w.words[2][i];
      w.words[0][i] =
          static_cast<uint32_t>(product1 >> 32) ^ w.words[1][i] ^ key0;
      w.words[2][i] =
          static_cast<uint32_t>(product0 >> 32) ^ w.words[3][i] ^ key1;
      w.words[1][i] = static_cast<uint32_t>(product1);
      w.words[3][i] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

WEFT_INLINE void
next_words(Words& w, uint64_t seed, uint64_t stream, uint64_t first) {
  for (int64_t i = 0; i < kLanes; ++i) {
    start(w, i, first + static_cast<uint64_t>(i), stream);
  }
  run_rounds(w, seed);
}

// Computes log_of_fraction() without branches. n is at most 2^24, so it is
// exact as a float. The exponent is taken from the float, because AVX2 converts
// 32-bit integers to double, but not the 64-bit ones that hold a double's
// exponent.
WEFT_INLINE double vector_log(uint32_t n) {
  const auto bits =
      std::bit_cast<int32_t>(static_cast<float>(static_cast<int32_t>(n)));
  const double fraction =
      std::bit_cast<float>((bits & 0x007FFFFF) | 0x3F800000);
  const bool halve = fraction > 1.4142135623730951;
  const int32_t exponent = (bits >> 23) - 127 + (halve ? 1 : 0);
  const double m = halve ? times(fraction, 0.5) : fraction;
  return plus(times(exponent - 24, 0.6931471805599453), log_near_one(m));
}

// Computes sin_cos_of_turn() without branches.
WEFT_INLINE SinCos vector_sin_cos(uint32_t n) {
  const uint32_t quarter = (n + (1U << 21)) >> 22;
  const SinCos rest = sin_cos_near_zero(
      static_cast<int32_t>(n) - static_cast<int32_t>(quarter << 22));
  const bool swap = (quarter & 1U) != 0;
  const double sin = swap ? rest.cos : rest.sin;
  const double cos = swap ? rest.sin : rest.cos;
  const double sin_sign = (quarter & 2U) != 0 ? -1.0 : 1.0;
  const double cos_sign = ((quarter + 1) & 2U) != 0 ? -1.0 : 1.0;
  return {times(sin, sin_sign), times(cos, cos_sign)};
}

template <class T>
WEFT_INLINE void interleave(const T (&lanes)[4][kLanes], T* numbers) {
  for (int64_t i = 0; i < kLanes; ++i) {
    for (int64_t lane = 0; lane < 4; ++lane) {
      numbers[4 * i + lane] = lanes[lane][i];
    }
  }
}

} // namespace

WEFT_FOR_EACH_PROCESSOR void
word_blocks(uint64_t seed, uint64_t stream, uint64_t first, uint32_t* words) {
  Words w;
  next_words(w, seed, stream, first);
  interleave(w.words, words);
}

WEFT_FOR_EACH_PROCESSOR void
uniform_blocks(uint64_t seed, uint64_t stream, uint64_t first, float* numbers) {
  Words w;
  next_words(w, seed, stream, first);
  float lanes[4][kLanes];
  for (int64_t lane = 0; lane < 4; ++lane) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const auto word = static_cast<int32_t>(w.words[lane][i] >> 8);
      lanes[lane][i] = static_cast<float>(word) * 0x1p-24f;
    }
  }
  interleave(lanes, numbers);
}

WEFT_FOR_EACH_PROCESSOR void
normal_blocks(uint64_t seed, uint64_t stream, uint64_t first, float* numbers) {
  Words w;
  next_words(w, seed, stream, first);
  float lanes[4][kLanes];
  for (int64_t lane = 0; lane < 4; lane += 2) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint32_t fraction = (1U << 24) - (w.words[lane][i] >> 8);
      const double radius = square_root(times(-2.0, vector_log(fraction)));
      const SinCos angle = vector_sin_cos(w.words[lane + 1][i] >> 8);
      lanes[lane][i] = static_cast<float>(times(radius, angle.cos));
      lanes[lane + 1][i] = static_cast<float>(times(radius, angle.sin));
    }
  }
  interleave(lanes, numbers);
}

WEFT_FOR_EACH_PROCESSOR void bits_of_blocks(
    uint64_t seed,
    uint64_t stream,
    const uint64_t* blocks,
    uint64_t* first,
    uint64_t* second) {
  Words w;
  for (int64_t i = 0; i < kLanes; ++i) {
    start(w, i, blocks[i], stream);
  }
  run_rounds(w, seed);
  for (int64_t i = 0; i < kLanes; ++i) {
    first[i] = w.words[0][i] | uint64_t{w.words[1][i]} << 32;
    second[i] = w.words[2][i] | uint64_t{w.words[3][i]} << 32;
  }
}

WEFT_FOR_EACH_PROCESSOR void vector_logs(const double* x, double* logs) {
  for (int64_t i = 0; i < kLanes; ++i) {
    const auto bits = std::bit_cast<uint64_t>(x[i]);
    const auto fraction = std::bit_cast<double>(
        (bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
    const bool halve = fraction > 1.4142135623730951;
    const auto exponent =
        static_cast<int32_t>(bits >> 52) - 1023 + (halve ? 1 : 0);
    const double m = halve ? times(fraction, 0.5) : fraction;
    logs[i] = plus(times(exponent, 0.6931471805599453), log_near_one(m));
  }
}

} // namespace weft::dtensor
