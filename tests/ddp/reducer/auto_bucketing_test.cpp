#include "ddp/reducer/auto_bucketing.h"

#include <gtest/gtest.h>

namespace weft::ddp {
namespace {

constexpr int64_t kKiB = 1024;

std::vector<GradientTiming> evenly(int n, int64_t every_ns, int64_t bytes) {
  std::vector<GradientTiming> gradients;
  for (int i = 0; i < n; ++i) {
    gradients.push_back({.ready_ns = (i + 1) * every_ns, .bytes = bytes});
  }
  return gradients;
}

TEST(SimulateBackward, ReducesOneBucketAfterTheOther) {
  const auto gradients = evenly(4, 100, 64 * kKiB);
  // Each by itself: the first at 100, and each takes longer than a gradient.
  EXPECT_DOUBLE_EQ(
      simulate_backward(
          gradients, {.start_ns = 150, .ns_per_byte = 0}, 64 * kKiB),
      100 + 4 * 150);
  // All at once, when the last one is ready.
  EXPECT_DOUBLE_EQ(
      simulate_backward(
          gradients, {.start_ns = 150, .ns_per_byte = 0}, 256 * kKiB),
      400 + 150);
  // Reductions that are short wait for gradients.
  EXPECT_DOUBLE_EQ(
      simulate_backward(
          gradients, {.start_ns = 50, .ns_per_byte = 0}, 64 * kKiB),
      400 + 50);
  EXPECT_DOUBLE_EQ(simulate_backward({}, {.start_ns = 1}, kKiB), 0);
}

TEST(ChooseCap, BalancesStartsAgainstTheLastReduction) {
  const auto gradients = evenly(64, 1000, 64 * kKiB);
  // Nothing but starts: one bucket of all.
  EXPECT_GE(
      choose_cap(gradients, {.start_ns = 1e6, .ns_per_byte = 0}),
      64 * 64 * kKiB);
  // Nothing but bytes, which hide behind backward: the smallest bucket.
  EXPECT_EQ(
      choose_cap(gradients, {.start_ns = 0, .ns_per_byte = 0.01}), 64 * kKiB);
  // Both: something between.
  const auto cap =
      choose_cap(gradients, {.start_ns = 3000, .ns_per_byte = 0.01});
  EXPECT_GT(cap, 64 * kKiB);
  EXPECT_LT(cap, 64 * 64 * kKiB);
}

} // namespace
} // namespace weft::ddp
