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

LedgerEntry call(std::string op, int64_t bytes) {
  LedgerEntry entry;
  entry.op = std::move(op);
  entry.bytes = bytes;
  return entry;
}

TEST(Ledger, CountsOutliveTheRing) {
  Ledger ledger(2);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ledger.begin(call("all_reduce", 8)), static_cast<uint64_t>(i));
  }
  ledger.begin(call("barrier", 0));
  const auto entries = ledger.entries();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].sequence, 4U);
  EXPECT_EQ(entries[1].op, "barrier");
  EXPECT_EQ(ledger.total_bytes(), 40);
  EXPECT_THAT(
      ledger.counts(), ElementsAre(Pair("all_reduce", 5), Pair("barrier", 1)));
}

TEST(Ledger, AnEntryEndsOnceItIsStillKept) {
  Ledger ledger(2);
  for (int i = 0; i < 3; ++i) {
    ledger.begin(call("broadcast", 1));
  }
  ledger.end(0); // Dropped long ago.
  ledger.end(2);
  const auto entries = ledger.entries();
  EXPECT_EQ(entries[0].end_ns, 0);
  EXPECT_GE(entries[1].end_ns, entries[1].start_ns);
}

TEST(Ledger, ResetForgetsButNumbersGoOn) {
  Ledger ledger;
  ledger.begin(call("all_gather", 3));
  ledger.add_blocked(std::chrono::nanoseconds(5));
  EXPECT_EQ(ledger.blocked_ns(), 5);
  ledger.reset();
  EXPECT_TRUE(ledger.entries().empty());
  EXPECT_TRUE(ledger.counts().empty());
  EXPECT_EQ(ledger.total_bytes(), 0);
  EXPECT_EQ(ledger.blocked_ns(), 0);
  ledger.end(0);
  EXPECT_EQ(ledger.begin(call("all_gather", 3)), 1U);
  ledger.end(1);
  EXPECT_GT(ledger.entries().front().end_ns, 0);
}

TEST(LedgerOfGroup, RecordsWhatWasMoved) {
  run_ranks(2, [](RankContext& self) {
    Communicator group = self.world.group();
    group.all_reduce(at::ones({2, 3}), ReduceOp::kSum, "wq").wait();
    group
        .all_gather(at::empty({8}, at::kBFloat16), at::ones({4}, at::kBFloat16))
        .wait();
    group.reduce_scatter(at::empty({2}), at::ones({4})).wait();
    group.all_reduce_coalesced({at::ones({2}), at::ones({3})}).wait();
    group.barrier("end");

    const auto entries = group.ledger().entries();
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
    EXPECT_GT(group.ledger().blocked_ns(), 0);
  });
}

TEST(LedgerOfGroup, AnEntryIsOpenWhileAPeerIsMissing) {
  run_ranks(2, [](RankContext& self) {
    Communicator group = self.world.group();
    Communicator signal = self.world.make_group("signal", {0, 1});
    auto one = at::ones({1});
    if (self.rank == 0) {
      Work work = group.all_reduce(one);
      EXPECT_EQ(group.ledger().entries().back().end_ns, 0);
      EXPECT_FALSE(work.is_completed());
      signal.barrier();
      work.wait();
      EXPECT_GT(group.ledger().entries().back().end_ns, 0);
      EXPECT_TRUE(work.is_completed());
    } else {
      signal.barrier();
      group.all_reduce(one).wait();
    }
    EXPECT_EQ(one.item<float>(), 2);
  });
}

TEST(LedgerOfGroup, AFakeGroupRecordsToo) {
  Communicator group = World::fake(3, 1024).group();
  EXPECT_EQ(group.backend(), "fake");
  group.all_gather(at::empty({1024, 2}), at::ones({2}), "embedding").wait();
  const auto entries = group.ledger().entries();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].bytes, 8192);
  EXPECT_GT(entries[0].end_ns, 0);
}

} // namespace
} // namespace weft::mesh
