#include <functional>
#include <mutex>
#include <string>
#include <vector>

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
using ::testing::Each;
using ::testing::HasSubstr;

using Call = std::function<Work(Communicator&)>;

/// What each of `ranks` ranks is told when the last calls `odd`.
std::vector<std::string> messages(int ranks, const Call& one, const Call& odd) {
  std::mutex mutex;
  std::vector<std::string> result;
  run_ranks(ranks, [&](RankContext& self) {
    Communicator group = self.world.group();
    auto text = message_of_thrown<DisagreementError>([&] {
      (self.rank + 1 == self.world_size ? odd : one)(group).wait();
      // Not every rank of a broadcast hears from every other.
      group.barrier();
    });
    const std::lock_guard lock(mutex);
    result.push_back(std::move(text));
  });
  return result;
}

void expect_named(
    const Call& one,
    const Call& odd,
    const std::string& first,
    const std::string& second) {
  for (const int ranks : {2, 3}) {
    EXPECT_THAT(
        messages(ranks, one, odd),
        Each(AllOf(
            HasSubstr("Ranks called different collectives in group \"world\""),
            HasSubstr(first),
            HasSubstr(
                "rank " + std::to_string(ranks - 1) + " calls " + second))));
  }
}

Call sum_of(int64_t count, at::ScalarType dtype) {
  return [=](Communicator& group) {
    return group.all_reduce(at::ones({count}, dtype));
  };
}

TEST(ShmMismatch, OtherOperations) {
  expect_named(
      sum_of(4, at::kFloat),
      [](Communicator& group) {
        return group.all_gather(at::zeros({4 * group.size()}), at::ones({4}));
      },
      "all_reduce #0 ([4] Float, 16 bytes)",
      "all_gather #0 ([4] Float, ");
}

TEST(ShmMismatch, OtherDtypes) {
  expect_named(
      sum_of(4, at::kFloat),
      sum_of(4, at::kInt),
      "all_reduce #0 ([4] Float, 16 bytes)",
      "all_reduce #0 ([4] Int, 16 bytes)");
}

TEST(ShmMismatch, OtherSizes) {
  expect_named(
      sum_of(4, at::kFloat),
      sum_of(5, at::kFloat),
      "all_reduce #0 ([4] Float, 16 bytes)",
      "all_reduce #0 ([5] Float, 20 bytes)");
  expect_named(
      sum_of(400'000, at::kFloat),
      sum_of(4, at::kFloat),
      "all_reduce #0 ([400000] Float, 1.53 MiB)",
      "all_reduce #0 ([4] Float, 16 bytes)");
}

TEST(ShmMismatch, OtherReductions) {
  expect_named(
      sum_of(4, at::kFloat),
      [](Communicator& group) {
        return group.all_reduce(at::ones({4}), ReduceOp::kMax);
      },
      "all_reduce #0 ([4] Float, 16 bytes)",
      "all_reduce #0 to the maximum ([4] Float, 16 bytes)");
}

TEST(ShmMismatch, OtherRoots) {
  for (const int64_t count : {4, 400'000}) {
    const auto from = [count](int64_t root) {
      return [=](Communicator& group) {
        return group.broadcast(
            at::ones({count}), root < 0 ? group.size() - 1 : root);
      };
    };
    expect_named(
        from(0),
        from(-1),
        "broadcast #0 from rank 0 of the group",
        "broadcast #0 from rank ");
  }
}

TEST(ShmMismatch, ACallMoreOrLess) {
  expect_named(
      [](Communicator& group) {
        group.broadcast(at::ones({4}), 0).wait();
        return group.broadcast(at::ones({4}), 0);
      },
      [](Communicator& group) { return group.broadcast(at::ones({4}), 0); },
      "broadcast #1 from rank 0 of the group ([4] Float, 16 bytes)",
      "barrier #1");
}

// Nobody waits for the call that went wrong.
TEST(ShmMismatch, LaterCallsTellWhatWentWrongBefore) {
  run_ranks(2, [](RankContext& self) {
    Communicator group = self.world.group();
    group.all_reduce(at::ones({self.rank + 4}));
    EXPECT_THAT(
        message_of_thrown<DisagreementError>([&] { group.barrier(); }),
        HasSubstr("rank 1 calls all_reduce #0 ([5] Float, 20 bytes), rank 0 "
                  "calls all_reduce #0 ([4] Float, 16 bytes)"));
    EXPECT_THAT(
        message_of_thrown<DisagreementError>([&] { group.barrier(); }),
        HasSubstr("[barrier]"));
  });
}

} // namespace
} // namespace weft::mesh
