#include "tests/lighthouse/simulation.h"

#include <gtest/gtest.h>

namespace weft::lighthouse::test {
namespace {

TEST(Simulation, FiveThousandSchedulesKeepToOneLineage) {
  Outcome all;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    const auto outcome = simulate(seed);
    ASSERT_EQ(outcome.violation, "");
    all.add(outcome);
  }
  // They meet what they are there for.
  EXPECT_GT(all.commits, 1'000'000);
  EXPECT_GT(all.lost_groups, 5000);
  EXPECT_GT(all.lighthouse_starts, 7000);
  EXPECT_GT(all.generations, 6000);
  EXPECT_GT(all.rolled_forward, 5000);
  EXPECT_GT(all.done_again, 5000);
  EXPECT_GT(all.healed, 5000);
}

TEST(Simulation, IsTheSameForTheSameSeed) {
  EXPECT_EQ(simulate(7).to_text(), simulate(7).to_text());
  EXPECT_NE(simulate(7).to_text(), simulate(8).to_text());
}

} // namespace
} // namespace weft::lighthouse::test
