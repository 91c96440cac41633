#include "data/sample_order.h"

#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::data {
namespace {

std::vector<int64_t> permutation(int64_t size, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < size; ++i) {
    values.push_back(permute(i, size, seed, stream));
  }
  return values;
}

TEST(Permute, IsABijection) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
    for (const uint64_t seed : {0, 1, 42}) {
      const auto values = permutation(size, seed, seed);
      const std::set<int64_t> distinct(values.begin(), values.end());
      EXPECT_EQ(static_cast<int64_t>(distinct.size()), size);
      EXPECT_EQ(*distinct.begin(), 0);
      EXPECT_EQ(*distinct.rbegin(), size - 1);
    }
  }
}

TEST(Permute, IsInsideForHugeSizes) {
  const int64_t size = (int64_t{1} << 40) + 7;
  std::set<int64_t> distinct;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t value = permute(i, size, 1, 2);
    EXPECT_GE(value, 0);
    EXPECT_LT(value, size);
    distinct.insert(value);
  }
  EXPECT_EQ(distinct.size(), 1000U);
}

TEST(Permute, RefusesWhatIsOutside) {
  EXPECT_THROW(permute(3, 3, 0, 0), c10::ValueError);
  EXPECT_THROW(permute(-1, 3, 0, 0), c10::ValueError);
}

// The order is part of what a run is: it must never change.
TEST(Permute, StaysAsItIs) {
  EXPECT_EQ(
      permutation(8, 42, 0), (std::vector<int64_t>{0, 1, 5, 4, 3, 6, 7, 2}));
  EXPECT_EQ(
      permutation(8, 42, 1), (std::vector<int64_t>{1, 3, 5, 2, 4, 7, 6, 0}));
}

// Mean distance of neighbours is a third of the size, as for a random order,
// and few stay where they are.
TEST(Permute, LooksRandom) {
  const int64_t size = 10'000;
  const auto values = permutation(size, 7, 3);
  double distance = 0;
  int64_t fixed = 0;
  int64_t in_order = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    distance += std::abs(static_cast<double>(values[i] - values[i - 1]));
    fixed += values[i] == static_cast<int64_t>(i) ? 1 : 0;
    in_order += values[i] > values[i - 1] ? 1 : 0;
  }
  EXPECT_NEAR(distance / (size - 1.0) / size, 1.0 / 3.0, 0.02);
  EXPECT_LT(fixed, 10);
  EXPECT_NEAR(static_cast<double>(in_order) / size, 0.5, 0.02);
}

TEST(SampleOrder, HoldsOutTheLastPercent) {
  const SampleOrder order(/*num_tokens=*/10'000, /*sequence_length=*/10, 1);
  EXPECT_EQ(order.heldout_begin(), 9'900);
  EXPECT_EQ(order.num_train_samples(), 989);
  EXPECT_EQ(order.num_heldout_samples(), 9);
}

TEST(SampleOrder, HoldsOutAtLeastOneSample) {
  const SampleOrder order(1'000, 50, 1);
  EXPECT_EQ(order.heldout_begin(), 949);
  EXPECT_EQ(order.num_heldout_samples(), 1);
  EXPECT_EQ(order.heldout_offset(0), 949);
  EXPECT_EQ(order.heldout_offset(5), 949);
}

TEST(SampleOrder, RefusesDataThatIsTooShort) {
  EXPECT_EQ(SampleOrder(22, 10, 1).num_train_samples(), 1);
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>(
          [] { SampleOrder(21, 10, 1, "r.yaml:4:3: data.sequence_length"); }),
      "r.yaml:4:3: data.sequence_length: a sequence length of 10 is too long "
      "for data of 21 tokens. One training and one validation sample need 22");
}

TEST(SampleOrder, AnEpochTakesEverySampleOnceAndTheNextInAnotherOrder) {
  const SampleOrder order(5'003, 7, 42);
  const int64_t n = order.num_train_samples();
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < n; ++i) {
      offsets.push_back(order.train_offset(epoch * n + i));
    }
    const std::set<int64_t> distinct(offsets.begin(), offsets.end());
    EXPECT_EQ(static_cast<int64_t>(distinct.size()), n);
    EXPECT_EQ(*distinct.begin(), 0);
    EXPECT_EQ(*distinct.rbegin(), (n - 1) * 7);
    epochs.push_back(offsets);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  const SampleOrder other_seed(5'003, 7, 43);
  EXPECT_NE(other_seed.train_offset(0), order.train_offset(0));
}

TEST(SampleOrder, HeldOutTokensAreNeverTrainedOn) {
  for (const int64_t num_tokens : {100, 101, 999, 5'000, 12'345}) {
    for (const int64_t length : {1, 3, 32, 49}) {
      const SampleOrder order(num_tokens, length, 1);
      for (int64_t i = 0; i < 2 * order.num_train_samples(); ++i) {
        const int64_t begin = order.train_offset(i);
        EXPECT_GE(begin, 0);
        EXPECT_LE(begin + length + 1, order.heldout_begin());
      }
      for (int64_t i = 0; i < 2 * order.num_heldout_samples(); ++i) {
        const int64_t begin = order.heldout_offset(i);
        EXPECT_GE(begin, order.heldout_begin());
        EXPECT_LE(begin + length + 1, num_tokens);
      }
    }
  }
}

} // namespace
} // namespace weft::data
