#include "dtensor/random/random.h"

#include <cmath>
#include <cstring>
#include <random>

#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/random/random_arithmetic.h"
#include "dtensor/random/random_blocks.h"
#include "dtensor/random/random_sampling.h"

namespace weft::dtensor {
namespace {

constexpr double kPi = 3.14159265358979323846;

TEST(Random, PhiloxIsLibtorchs) {
  std::mt19937_64 any(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t seed = any();
    const uint64_t stream = any();
    const uint64_t block = any() >> (i % 64);
    at::Philox4_32 expected(seed, stream, block);
    const auto words = philox(seed, stream, block);
    const auto numbers = uniform_block(seed, stream, block);
    for (int lane = 0; lane < 4; ++lane) {
      const uint32_t word = expected();
      ASSERT_EQ(words.words[lane], word);
      ASSERT_EQ(numbers.numbers[lane], std::ldexp(float(word >> 8), -24));
    }
  }
}

TEST(Random, LogarithmIsExactEnough) {
  for (uint32_t n = 1; n <= 1U << 24; n += n < 5000 ? 1 : 997) {
    const double expected = std::log(n / 16777216.0);
    ASSERT_NEAR(
        log_of_fraction(n), expected, 1e-12 * std::abs(expected) + 1e-300)
        << n;
  }
  EXPECT_EQ(log_of_fraction(1U << 24), 0.0);
}

TEST(Random, VectorLogarithmIsExactEnough) {
  std::mt19937_64 any(3);
  std::uniform_real_distribution<double> unit;
  double x[kBlocksAtOnce];
  double logs[kBlocksAtOnce];
  for (int i = 0; i < 2000; ++i) {
    for (auto& value : x) {
      const double fraction = unit(any) + 0x1p-53;
      value = std::ldexp(fraction, -static_cast<int>(any() % 60));
    }
    x[0] = 0x1p-53;
    x[1] = 1 - 0x1p-53;
    x[2] = 1;
    vector_logs(x, logs);
    for (int64_t b = 0; b < kBlocksAtOnce; ++b) {
      const double expected = std::log(x[b]);
      ASSERT_NEAR(logs[b], expected, 2e-12 * std::abs(expected)) << x[b];
    }
  }
}

TEST(Random, SineAndCosineAreExactEnough) {
  for (uint32_t n = 0; n < 1U << 24; n += 1021) {
    const auto value = sin_cos_of_turn(n);
    ASSERT_NEAR(value.sin, std::sin(2 * kPi * n / 16777216.0), 1e-12) << n;
    ASSERT_NEAR(value.cos, std::cos(2 * kPi * n / 16777216.0), 1e-12) << n;
  }
}

TEST(Random, ManyBlocksAtOnceAreTheSameAsOneByOne) {
  std::mt19937_64 any(2);
  float numbers[4 * kBlocksAtOnce];
  uint64_t blocks[kBlocksAtOnce];
  uint64_t bits[2][kBlocksAtOnce];
  uint32_t many_words[4 * kBlocksAtOnce];
  for (int i = 0; i < 2000; ++i) {
    const uint64_t seed = any();
    const uint64_t stream = any();
    const uint64_t first = any() >> (i % 64);
    for (const bool normal : {false, true}) {
      (normal ? normal_blocks : uniform_blocks)(seed, stream, first, numbers);
      for (int64_t b = 0; b < kBlocksAtOnce; ++b) {
        const auto one = (normal ? normal_block : uniform_block)(
            seed, stream, first + static_cast<uint64_t>(b));
        ASSERT_EQ(std::memcmp(numbers + 4 * b, one.numbers, 16), 0);
      }
    }
    word_blocks(seed, stream, first, many_words);
    for (int64_t b = 0; b < kBlocksAtOnce; ++b) {
      const auto one = philox(seed, stream, first + static_cast<uint64_t>(b));
      ASSERT_EQ(std::memcmp(many_words + 4 * b, one.words, 16), 0);
    }
    for (auto& block : blocks) {
      block = any();
    }
    bits_of_blocks(seed, stream, blocks, bits[0], bits[1]);
    for (int64_t b = 0; b < kBlocksAtOnce; ++b) {
      const auto block = philox(seed, stream, blocks[b]);
      ASSERT_EQ(bits[0][b], block.words[0] | uint64_t{block.words[1]} << 32);
      ASSERT_EQ(bits[1][b], block.words[2] | uint64_t{block.words[3]} << 32);
    }
  }
}

TEST(Random, IntegersFillAndSampleAlike) {
  const std::vector<int64_t> sizes{5, 301};
  const RandomKey key{.seed = 1, .stream = 2};
  for (const uint64_t range : {uint64_t{1}, uint64_t{9}, uint64_t{1} << 32}) {
    auto whole = at::empty(sizes, at::kLong);
    fill_integers(whole, {{0, 0}, sizes}, sizes, key, -3, range);
    EXPECT_TRUE(whole.equal(
        sample_integers(at::arange(5 * 301).view(sizes), key, -3, range)));
    EXPECT_GE(whole.min().item<int64_t>(), -3);
    EXPECT_LT(whole.max().item<int64_t>(), -3 + static_cast<int64_t>(range));
    for (const int64_t width : {1, 7, 200}) {
      auto part = at::empty({2, width}, at::kLong);
      fill_integers(
          part, {{1, 301 - width}, {2, width}}, sizes, key, -3, range);
      EXPECT_TRUE(
          part.equal(whole.narrow(0, 1, 2).narrow(1, 301 - width, width)));
    }
  }
}

TEST(Random, AnyBoxIsCutOutOfTheWhole) {
  const std::vector<int64_t> sizes{7, 5, 301};
  for (const bool normal : {false, true}) {
    const auto fill = normal ? fill_normal : fill_uniform;
    auto whole = at::empty(sizes);
    fill(whole, {{0, 0, 0}, sizes}, sizes, {.seed = 1, .stream = 2}, 0, 1);
    for (const int64_t width : {0, 1, 3, 4, 63, 64, 150, 300}) {
      auto part = at::empty({3, 5, width});
      fill(
          part,
          {{2, 0, 301 - width}, {3, 5, width}},
          sizes,
          {.seed = 1, .stream = 2},
          0,
          1);
      EXPECT_TRUE(
          part.equal(whole.narrow(0, 2, 3).narrow(2, 301 - width, width)));
    }
  }
}

uint64_t hash_of(const at::Tensor& tensor) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto* data = tensor.const_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, data + i, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3ULL;
  }
  return hash;
}

at::Tensor normals(int64_t n) {
  auto result = at::empty({n});
  fill_normal(result, {{0}, {n}}, {n}, {.seed = 42, .stream = 7}, 0.5, 2.0);
  return result;
}

// A compiler that fuses a product with a sum, another processor or C library:
// all have to arrive at these bits, or checkpoints of initial weights differ
// between machines.
TEST(Random, BitsAreTheSameOnEveryMachine) {
  EXPECT_EQ(hash_of(normals(1 << 20)), 0xc5c5de6a338382e3ULL);
  auto uniform = at::empty({1 << 20});
  fill_uniform(
      uniform,
      {{0}, {1 << 20}},
      {1 << 20},
      {.seed = 42, .stream = 7},
      -0.1,
      0.3);
  EXPECT_EQ(hash_of(uniform), 0x44afc6328cc975b7ULL);
}

TEST(Random, NormalsHaveTheMomentsOfTheNormalDistribution) {
  const auto x = ((normals(1 << 20) - 0.5) / 2.0).to(at::kDouble);
  const double error = 5.0 / std::sqrt(double(1 << 20));
  EXPECT_NEAR(x.mean().item<double>(), 0, error);
  EXPECT_NEAR(x.pow(2).mean().item<double>(), 1, error * std::sqrt(2.0));
  EXPECT_NEAR(x.pow(3).mean().item<double>(), 0, error * std::sqrt(15.0));
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, error * std::sqrt(96.0));
  EXPECT_GT(x.abs().max().item<double>(), 4.0);
}

} // namespace
} // namespace weft::dtensor
