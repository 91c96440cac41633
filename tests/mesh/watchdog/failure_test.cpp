#include <chrono>
#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// What moves the data: "cpu" is shared memory here.
class Failure : public ::testing::TestWithParam<std::string> {
 protected:
  static bool is_shared_memory() { return GetParam() == "cpu"; }
  static WorldOptions options(milliseconds timeout) {
    WorldOptions result;
    result.backend = GetParam();
    result.timeout = timeout;
    return result;
  }
  static void run(
      int ranks,
      const std::function<void(RankContext&)>& body,
      milliseconds timeout = std::chrono::seconds(30)) {
    run_ranks(ranks, body, timeout, GetParam());
  }
};

TEST_P(Failure, AbortEndsWhatIsUnderWayHereAndThere) {
  std::latch connected(3);
  run(3, [&](RankContext& self) {
    Communicator group = self.world.group();
    connected.arrive_and_wait();
    auto tensor = at::ones({8});
    if (self.rank == 2) {
      group.abort();
      EXPECT_THAT(
          message_of_thrown<CommError>([&] { group.all_reduce(tensor); }),
          AllOf(
              HasSubstr("[all_reduce] The group was aborted on this rank."),
              HasSubstr("rank 2/3, group \"world\"")));
      return;
    }
    // Rank 2 never joins; the time limit is far away.
    EXPECT_THAT(
        message_of_thrown<CommError>(
            [&] { group.all_reduce(tensor, ReduceOp::kSum, "wq").wait(); }),
        AllOf(
            HasSubstr("[all_reduce] A peer is gone"),
            HasSubstr("group \"world\", tensor \"wq\" [8]")));
    EXPECT_THROW(group.barrier(), CommError);
  });
}

TEST_P(Failure, AbortFromAnotherThreadWakesTheWaiter) {
  std::latch connected(2);
  run(2, [&](RankContext& self) {
    Communicator group = self.world.group();
    connected.arrive_and_wait();
    if (self.rank == 1) {
      return;
    }
    Work work = group.all_reduce(at::ones({8}));
    std::thread aborter([&] { self.world.abort(); });
    EXPECT_THAT(
        message_of_thrown<CommError>([&] { work.wait(); }),
        HasSubstr("The group was aborted on this rank"));
    EXPECT_THROW(work.wait(), CommError);
    EXPECT_TRUE(work.is_completed());
    aborter.join();
  });
}

TEST_P(Failure, APeerThatHasEndedIsReported) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::latch connected(3);
  const auto body = [&](int rank) {
    std::optional<World> world =
        World::from_store(store, rank, 3, options(std::chrono::minutes(5)));
    std::optional<Communicator> group = world->group();
    connected.arrive_and_wait();
    if (rank == 0) {
      group.reset();
      world.reset();
      return;
    }
    EXPECT_THAT(
        message_of_thrown<DisagreementError>(
            [&] { group->all_reduce(at::ones({100000})).wait(); }),
        AllOf(
            HasSubstr("Rank 0 has ended, but rank"),
            HasSubstr(
                "all_reduce #0 ([100000] Float, 391 KiB) of group \"world\"")));
  };
  std::thread first(body, 0);
  std::thread second(body, 1);
  body(2);
  first.join();
  second.join();
}

TEST_P(Failure, ATimeoutSaysHowLong) {
  run(
      2,
      [](RankContext& self) {
        Communicator group = self.world.group();
        if (self.rank == 0) {
          EXPECT_THAT(
              message_of_thrown<CommError>(
                  [&] { group.all_reduce(at::ones({4})).wait(); }),
              HasSubstr(
                  is_shared_memory()
                      ? "Timed out after 0.5 s; not all ranks took part: timed "
                        "out waiting for rank 1 of the world"
                      : "Timed out after 0.5 s; not all ranks took part"));
        }
      },
      milliseconds(500));
}

TEST_P(Failure, AMemberWhoNeverComesIsATimeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(milliseconds(300));
  const World world =
      World::from_store(store, 0, 2, options(milliseconds(300)));
  EXPECT_THAT(
      message_of_thrown<CommError>([&] { world.group(); }),
      AllOf(
          HasSubstr("[make_group]"),
          HasSubstr("rank 0/2, group \"world\" of 2 ranks")));
}

TEST_P(Failure, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  run(2, [](RankContext& self) {
    Communicator group = self.world.group();
    const auto refused = [](const auto& body) {
      return message_of_thrown<c10::ValueError>(body);
    };
    EXPECT_THAT(
        refused([&] { group.all_gather(at::empty({5}), at::ones({3}), "w"); }),
        AllOf(
            HasSubstr("[all_gather]"),
            HasSubstr("5 vs 6"),
            HasSubstr("tensor \"w\" [3]")));
    EXPECT_THAT(
        refused([&] { group.reduce_scatter(at::empty({2}), at::ones({5})); }),
        HasSubstr("5 vs 4"));
    EXPECT_THAT(
        refused([&] {
          group.all_gather(at::empty({2, 2}).t(), at::ones({2}));
        }),
        HasSubstr("not contiguous"));
    EXPECT_THAT(
        refused(
            [&] { group.all_gather_uneven({at::ones({1})}, at::ones({1})); }),
        HasSubstr("tensors: got 1, expected 2"));
    EXPECT_THAT(
        refused([&] {
          group.all_gather(at::empty({2}, at::kDouble), at::ones({1}));
        }),
        HasSubstr("Double vs Float"));
    EXPECT_THAT(
        refused([&] { group.broadcast(at::ones({1}), 2); }),
        HasSubstr("2 vs 2"));
    EXPECT_THAT(
        refused([&] { group.all_reduce(at::Tensor()); }),
        HasSubstr("undefined"));
    EXPECT_THAT(
        refused([&] {
          group.all_reduce(at::ones({1}, at::kLong), ReduceOp::kAvg);
        }),
        HasSubstr("An average of Long"));
    EXPECT_THAT(
        refused([&] { group.all_reduce(at::empty({2}, at::kMeta)); }),
        HasSubstr("on meta"));
    EXPECT_THAT(
        refused([&] {
          group.all_reduce_coalesced(
              {at::ones({1}, at::kComplexFloat)}, ReduceOp::kMax);
        }),
        HasSubstr("not defined for complex numbers"));
    EXPECT_TRUE(group.flight_recorder().entries().empty());
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Backend,
    Failure,
    ::testing::Values("cpu", "gloo"),
    [](const auto& info) { return info.param; });

} // namespace
} // namespace weft::mesh
