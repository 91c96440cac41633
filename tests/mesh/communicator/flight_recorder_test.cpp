#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::RankContext;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::Pair;

FlightRecorderEntry call(std::string op, int64_t bytes) {
  FlightRecorderEntry entry;
  entry.op = std::move(op);
  entry.bytes = bytes;
  return entry;
}

TEST(FlightRecorder, CountsOutliveTheRing) {
  FlightRecorder flight_recorder(2);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(
        flight_recorder.begin(call("all_reduce", 8)), static_cast<uint64_t>(i));
  }
  flight_recorder.begin(call("barrier", 0));
  const auto entries = flight_recorder.entries();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].sequence, 4U);
  EXPECT_EQ(entries[1].op, "barrier");
  EXPECT_EQ(flight_recorder.total_bytes(), 40);
  EXPECT_THAT(
      flight_recorder.counts(),
      ElementsAre(Pair("all_reduce", 5), Pair("barrier", 1)));
}

TEST(FlightRecorder, AnEntryEndsOnceItIsStillKept) {
  FlightRecorder flight_recorder(2);
  for (int i = 0; i < 3; ++i) {
    flight_recorder.begin(call("broadcast", 1));
  }
  flight_recorder.end(0); // Dropped long ago.
  flight_recorder.end(2);
  const auto entries = flight_recorder.entries();
  EXPECT_EQ(entries[0].end_ns, 0);
  EXPECT_GE(entries[1].end_ns, entries[1].start_ns);
}

TEST(FlightRecorder, ResetForgetsButNumbersGoOn) {
  FlightRecorder flight_recorder;
  flight_recorder.begin(call("all_gather", 3));
  flight_recorder.add_blocked(std::chrono::nanoseconds(5));
  EXPECT_EQ(flight_recorder.blocked_ns(), 5);
  flight_recorder.reset();
  EXPECT_TRUE(flight_recorder.entries().empty());
  EXPECT_TRUE(flight_recorder.counts().empty());
  EXPECT_EQ(flight_recorder.total_bytes(), 0);
  EXPECT_EQ(flight_recorder.blocked_ns(), 0);
  flight_recorder.end(0);
  EXPECT_EQ(flight_recorder.begin(call("all_gather", 3)), 1U);
  flight_recorder.end(1);
  EXPECT_GT(flight_recorder.entries().front().end_ns, 0);
}

TEST(FlightRecorderOfGroup, RecordsWhatWasMoved) {
  run_ranks(2, [](RankContext& self) {
    Communicator group = self.world.group();
    group.all_reduce(at::ones({2, 3}), ReduceOp::kSum, "wq").wait();
    group
        .all_gather(at::empty({8}, at::kBFloat16), at::ones({4}, at::kBFloat16))
        .wait();
    group.reduce_scatter(at::empty({2}), at::ones({4})).wait();
    group.all_reduce_coalesced({at::ones({2}), at::ones({3})}).wait();
    group.barrier("end");

    const auto entries = group.flight_recorder().entries();
    ASSERT_EQ(entries.size(), 5U);
    EXPECT_EQ(entries[0].op, "all_reduce");
    EXPECT_EQ(entries[0].name, "wq");
    EXPECT_THAT(entries[0].shape, ElementsAre(2, 3));
    EXPECT_EQ(entries[0].dtype, at::kFloat);
    EXPECT_EQ(entries[0].bytes, 24);
    EXPECT_EQ(entries[1].op, "all_gather");
    EXPECT_EQ(entries[1].dtype, at::kBFloat16);
    EXPECT_EQ(entries[1].bytes, 16);
    EXPECT_EQ(entries[2].op, "reduce_scatter");
    EXPECT_EQ(entries[2].bytes, 16);
    EXPECT_EQ(entries[3].op, "all_reduce_coalesced");
    EXPECT_THAT(entries[3].shape, ElementsAre(5));
    EXPECT_EQ(entries[4].name, "end");
    for (size_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(entries[i].sequence, i);
      EXPECT_GT(entries[i].start_ns, 0);
      EXPECT_GE(entries[i].end_ns, entries[i].start_ns);
    }
    EXPECT_GT(group.flight_recorder().blocked_ns(), 0);
  });
}

TEST(FlightRecorderOfGroup, AnEntryIsOpenWhileAPeerIsMissing) {
  run_ranks(2, [](RankContext& self) {
    Communicator group = self.world.group();
    Communicator signal = self.world.make_group("signal", {0, 1});
    auto one = at::ones({1});
    if (self.rank == 0) {
      Work work = group.all_reduce(one);
      EXPECT_EQ(group.flight_recorder().entries().back().end_ns, 0);
      EXPECT_FALSE(work.is_completed());
      signal.barrier();
      work.wait();
      EXPECT_GT(group.flight_recorder().entries().back().end_ns, 0);
      EXPECT_TRUE(work.is_completed());
    } else {
      signal.barrier();
      group.all_reduce(one).wait();
    }
    EXPECT_EQ(one.item<float>(), 2);
  });
}

TEST(FlightRecorderOfGroup, AFakeGroupRecordsToo) {
  Communicator group = World::fake(3, 1024).group();
  EXPECT_EQ(group.backend(), "fake");
  group.all_gather(at::empty({1024, 2}), at::ones({2}), "embedding").wait();
  const auto entries = group.flight_recorder().entries();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].bytes, 8192);
  EXPECT_GT(entries[0].end_ns, 0);
}

} // namespace
} // namespace weft::mesh
