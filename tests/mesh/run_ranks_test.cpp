#include "tests/support/run_ranks.h"

#include <atomic>
#include <stdexcept>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"

namespace weft::test {
namespace {

TEST(RunRanks, EveryRankRunsOnceInOneWorld) {
  std::atomic<int> sum = 0;
  run_ranks(4, [&](RankContext& self) {
    EXPECT_EQ(self.world.rank(), self.rank);
    EXPECT_EQ(self.world.world_size(), 4);
    EXPECT_EQ(self.mesh({2, 2}, {"dp", "tp"}).rank(), self.rank);
    sum += 1 << self.rank;
  });
  EXPECT_EQ(sum, 15);
}

TEST(RunRanks, AnExceptionFailsTheTestAndEndsTheOthers) {
  // The collective's own time limit is beyond the test's.
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      run_ranks(
          3,
          [](RankContext& self) {
            auto group = self.world.group();
            if (self.rank == 1) {
              throw std::runtime_error("broken");
            }
            group.all_reduce(at::ones({4})).wait();
          },
          std::chrono::minutes(10)),
      "rank 1 threw: broken");
}

// The others are making the group, in which it will never be.
TEST(RunRanks, AnExceptionBeforeTheFirstGroupEndsTheOthers) {
  for (const std::string backend : {"cpu", "gloo"}) {
    for (const int64_t thrower : {0, 1, 2}) {
      EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
          run_ranks(
              3,
              [&](RankContext& self) {
                if (self.rank == thrower) {
                  throw std::runtime_error("broken");
                }
                self.world.group().barrier();
              },
              std::chrono::minutes(10),
              backend),
          "threw: broken");
    }
  }
}

} // namespace
} // namespace weft::test
