// Ranks that leave a step by an exception, and go on living.
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Clock = std::chrono::steady_clock;

/// Longer than peers wait for a rank that left.
constexpr std::chrono::milliseconds kSlow{2500};

void sum_ones(Communicator& group) {
  auto sum = at::ones({4});
  group.all_reduce(sum, ReduceOp::kSum, "gradients").wait();
  EXPECT_EQ(sum[3].item<float>(), static_cast<float>(group.size()));
}

void leave(const World& world) {
  EXPECT_THROW(
      world.run_and_report_errors(
          "the forward pass",
          [] { throw std::runtime_error("sample 7 is damaged"); }),
      std::runtime_error);
}

class StepError : public ::testing::TestWithParam<std::string> {
 protected:
  void on_ranks(const std::function<void(RankContext&)>& body) {
    run_ranks(2, body, std::chrono::minutes(5), GetParam());
  }
};

TEST_P(StepError, ReachesWaitingRanks) {
  std::promise<void> told;
  on_ranks([&](RankContext& self) {
    auto group = self.world.group();
    sum_ones(group);
    if (self.rank == 1) {
      leave(self.world);
      told.get_future().wait();
      return;
    }
    const auto start = Clock::now();
    EXPECT_THAT(
        message_of_thrown<CommError>([&] { sum_ones(group); }),
        AllOf(
            HasSubstr("Rank 1 left the forward pass by an exception: sample 7 "
                      "is damaged. It was waited for by rank 0 in all_reduce "
                      "#1 (\"gradients\""),
            HasSubstr("rank 0/2")));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    told.set_value();
  });
}

TEST_P(StepError, OnAllRanksIsNotReported) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    sum_ones(group);
    leave(self.world);
    if (self.rank == 1) { // slow
      std::this_thread::sleep_for(kSlow);
    }
    sum_ones(group);
  });
}

TEST_P(StepError, IsOverWithTheNextPart) {
  on_ranks([](RankContext& self) {
    auto group = self.world.group();
    sum_ones(group);
    if (self.rank == 1) {
      leave(self.world);
      self.world.run_and_report_errors(
          "the next one", [] { std::this_thread::sleep_for(kSlow); });
    }
    sum_ones(group);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    StepError,
    ::testing::Values("cpu", "gloo"),
    [](const auto& info) { return info.param; });

TEST(TellPeers, ReturnsWhatItsBodyReturns) {
  const auto world = World::fake(0, 2);
  int64_t number = 3;
  int64_t& same = world.run_and_report_errors(
      "a part", [&]() -> int64_t& { return number; });
  EXPECT_EQ(&same, &number);
}

} // namespace
} // namespace weft::mesh
