#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "tests/support/count.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

// Ranks that do not call the same things, over sockets: nothing in a message
// tells, and gloo ends a process that gets more bytes than it asked for.

namespace weft::mesh {
namespace {

using test::count;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Calls = std::function<void(RankContext&, Communicator&)>;

/// What each rank is told; none may wait for its timeout, which is far away.
std::vector<std::string>
told(int ranks, const Calls& calls, const std::string& backend = "gloo") {
  std::mutex mutex;
  std::vector<std::string> result;
  run_ranks(
      ranks,
      [&](RankContext& self) {
        Communicator group = self.world.group();
        auto text =
            message_of_thrown<DisagreementError>([&] { calls(self, group); });
        const std::lock_guard lock(mutex);
        result.push_back(std::move(text));
      },
      std::chrono::minutes(5),
      backend);
  return result;
}

bool is_last(const RankContext& self) {
  return self.rank + 1 == self.world_size;
}

class Mismatch : public ::testing::TestWithParam<int> {
 protected:
  static std::string last() { return std::to_string(GetParam() - 1); }
};

TEST_P(Mismatch, OtherSizes) {
  for (const int64_t count : {4, 400'000}) {
    EXPECT_THAT(
        told(
            GetParam(),
            [&](RankContext& self, Communicator& group) {
              group.barrier("start");
              const auto size = is_last(self) ? count + 1 : count;
              group.all_reduce(at::ones({size}), ReduceOp::kSum, "wq").wait();
            }),
        Each(AllOf(
            StartsWith(
                "[all_reduce] Ranks called different collectives in "
                "group \"world\": rank " +
                last() + " calls all_reduce #1 (\"wq\" [" +
                std::to_string(count + 1)),
            HasSubstr("all_reduce #1 (\"wq\" [" + std::to_string(count)))));
  }
}

TEST_P(Mismatch, OtherNamesOfEqualSizes) {
  EXPECT_THAT(
      told(
          GetParam(),
          [&](RankContext& self, Communicator& group) {
            group
                .all_reduce(
                    at::ones({4}), ReduceOp::kSum, is_last(self) ? "wk" : "wq")
                .wait();
          }),
      Each(HasSubstr("rank " + last() + " calls all_reduce #0 (\"wk\"")));
}

TEST_P(Mismatch, OtherOperationsDtypesReductionsAndRoots) {
  const std::vector<Calls> odd{
      [](RankContext&, Communicator& group) {
        group.all_gather(at::zeros({4 * group.size()}), at::ones({4})).wait();
      },
      [](RankContext&, Communicator& group) {
        group.all_reduce(at::ones({4}, at::kInt)).wait();
      },
      [](RankContext&, Communicator& group) {
        group.all_reduce(at::ones({4}), ReduceOp::kMax).wait();
      },
      [](RankContext&, Communicator& group) { group.barrier(); },
  };
  for (const auto& call : odd) {
    EXPECT_THAT(
        told(
            GetParam(),
            [&](RankContext& self, Communicator& group) {
              if (is_last(self)) {
                call(self, group);
              } else {
                group.all_reduce(at::ones({4})).wait();
              }
            }),
        Each(HasSubstr("Ranks called different collectives")));
  }
  EXPECT_THAT(
      told(
          GetParam(),
          [](RankContext& self, Communicator& group) {
            group.broadcast(at::ones({4}), is_last(self) ? 0 : 1).wait();
            group.barrier();
          }),
      Each(HasSubstr("broadcast #0 from rank 0 of the group")));
}

TEST_P(Mismatch, PartsOfOtherSizes) {
  EXPECT_THAT(
      told(
          GetParam(),
          [](RankContext& self, Communicator& group) {
            std::vector<at::Tensor> outputs;
            for (int64_t r = 0; r < group.size(); ++r) {
              outputs.push_back(at::zeros({is_last(self) ? 3 : 2}));
            }
            group
                .all_gather_uneven(
                    outputs, at::ones({is_last(self) ? 3 : 2}), "rows")
                .wait();
          }),
      Each(HasSubstr("all_gather_uneven #0 (\"rows\"")));
  EXPECT_THAT(
      told(
          GetParam(),
          [](RankContext& self, Communicator& group) {
            std::vector<at::Tensor> inputs;
            std::vector<at::Tensor> outputs;
            for (int64_t r = 0; r < group.size(); ++r) {
              // The last rank expects more of rank 0 than it has for it.
              const bool is_odd = is_last(self) && r == 0;
              inputs.push_back(at::ones({2}));
              outputs.push_back(at::zeros({is_odd ? 5 : 2}));
            }
            group.all_to_all(outputs, inputs, "tokens").wait();
            group.barrier();
          }),
      Each(AllOf(
          HasSubstr("rank 0 sends 2 elements to rank " + last()),
          HasSubstr("which expects 5"))));
}

TEST_P(Mismatch, ASkippedCall) {
  EXPECT_THAT(
      told(
          GetParam(),
          [](RankContext& self, Communicator& group) {
            for (const auto* name : {"a", "b", "c", "d"}) {
              if (!(is_last(self) && std::string(name) == "b")) {
                group.all_reduce(at::ones({4}), ReduceOp::kSum, name).wait();
              }
            }
          }),
      Each(AllOf(
          HasSubstr("rank " + last() + " calls all_reduce #1 (\"c\""),
          HasSubstr("all_reduce #1 (\"b\""))));
}

TEST_P(Mismatch, ACallTooMany) {
  EXPECT_THAT(
      told(
          GetParam(),
          [](RankContext& self, Communicator& group) {
            group.all_reduce(at::ones({4}), ReduceOp::kSum, "a").wait();
            if (is_last(self)) {
              group.all_reduce(at::ones({4}), ReduceOp::kSum, "a").wait();
            }
            group.barrier("end");
          }),
      Each(AllOf(
          HasSubstr("rank " + last() + " calls all_reduce #1 (\"a\""),
          HasSubstr("barrier #1 \"end\""))));
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Mismatch,
    ::testing::Values(2, 3),
    [](const auto& info) { return std::to_string(info.param); });

// Two groups of the same ranks, called in another order: each rank waits for
// the other where the other is not.
TEST(DeadlockCycle, AreToldWhoWaitsForWhom) {
  for (const auto* backend : {"cpu", "gloo"}) {
    EXPECT_THAT(
        told(
            2,
            [](RankContext& self, Communicator& /*group*/) {
              auto one = self.world.make_group("one", {0, 1});
              auto two = self.world.make_group("two", {0, 1});
              const auto t = at::ones({4});
              (self.rank == 0 ? one : two).all_reduce(t).wait();
              (self.rank == 0 ? two : one).all_reduce(t).wait();
            },
            backend),
        Each(AllOf(
            HasSubstr("Ranks wait for each other: "),
            HasSubstr("rank 0 in all_reduce #0 ([4] Float, 16 bytes) of group "
                      "\"one\" for rank 1"),
            HasSubstr("rank 1 in all_reduce #0 ([4] Float, 16 bytes) of group "
                      "\"two\" for rank 0"))));
  }
}

// It comes late, and nothing is said.
TEST(LateRank, IsWaitedFor) {
  for (const auto* backend : {"cpu", "gloo"}) {
    run_ranks(
        3,
        [](RankContext& self) {
          auto group = self.world.group();
          group.barrier();
          if (self.rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2500));
          }
          auto sum = at::ones({4});
          group.all_reduce(sum).wait();
          EXPECT_EQ(sum[0].item<float>(), 3);
        },
        std::chrono::seconds(30),
        backend);
  }
}

// The first of those that wait reports it when its time has come, though others
// have asked before; and again after twice the time.
TEST(LateRank, IsSaidToBeWaitedForOnce) {
  WorldOptions options;
  options.watch.warn_after = std::chrono::milliseconds(800);
  ::testing::internal::CaptureStderr();
  run_ranks(
      4,
      [](RankContext& self) {
        auto group = self.world.group();
        group.barrier();
        std::this_thread::sleep_for(
            self.rank == 3 ? std::chrono::milliseconds(3000)
                           : std::chrono::milliseconds(40 * (2 - self.rank)));
        auto sum = at::ones({4});
        group.all_reduce(sum, ReduceOp::kSum, "late").wait();
        EXPECT_EQ(sum[0].item<float>(), 4);
      },
      options);
  const auto said = ::testing::internal::GetCapturedStderr();
  const auto warnings = count(said, "WARNING rank=");
  EXPECT_GE(warnings, 1) << said;
  EXPECT_LE(warnings, 2) << said;
  EXPECT_EQ(
      count(said, "WARNING rank=0 op=watch ranks 0 to 2 have waited "),
      warnings)
      << said;
  EXPECT_EQ(count(said, " in all_reduce #1 (\"late\" [4] Float, "), warnings)
      << said;
  EXPECT_EQ(count(said, " for rank 3; rank 3 "), warnings) << said;
}

} // namespace
} // namespace weft::mesh
