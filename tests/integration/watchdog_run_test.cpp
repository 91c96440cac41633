// Ranks that do not fit together, or do not come: the real programs.

#include <chrono>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class WatchedRunTest : public ProcessTest {
 protected:
  /// Each rank with settings and an environment of its own, from its RANK.
  static Words by_rank(
      int ranks,
      const std::string& settings,
      const std::string& before = "") {
    return launched(
        ranks,
        {"sh",
         "-c",
         before + "exec \"$0\" train tiny.yaml " + settings,
         WEFT_WEFT});
  }

  void expect_disagreement(
      const Words& words,
      const std::string& field,
      const std::string& first,
      const std::string& other) const {
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), 5) << run.error();
    EXPECT_THAT(
        run.last_error_line(),
        HasSubstr(
            "[agreement] " + field + ": rank 0 has '" + first +
            "' vs rank 1 has '" + other + "'"));
    EXPECT_THAT(run.error(), Not(HasSubstr("ERROR 150")));
    EXPECT_FALSE(fs::exists(folder_ / "outputs/tiny/metrics.jsonl"));
  }

  void expect_stop_is_named(int rank, const std::string& sign) const {
    const auto words = launched(
        4,
        train(
            {"mesh.dp=2",
             "mesh.tp=2",
             "train.steps=100000",
             "comm.timeout_s=3",
             "eval.every=0",
             "checkpoint.every=0",
             "output_dir=stopped"}));
    fs::create_directories(folder_ / "stopped/flight/rank_of_an_earlier_run");
    Process run(words, folder_);
    while (!fs::exists(folder_ / "stopped/metrics.jsonl") ||
           lines_of(metrics_text("stopped")).size() < 2) {
      ASSERT_FALSE(run.wait(std::chrono::seconds(0))) << run.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    auto workers = workers_of(run.pid());
    const auto stopped = workers.at(rank).pid();
    kill(stopped, SIGSTOP);
    EXPECT_EQ(run.wait(), 150) << run.error();
    EXPECT_THAT(
        run.last_error_line(),
        AllOf(
            HasSubstr("Timed out after 3 s"),
            HasSubstr(
                sign + " (process " + std::to_string(stopped) +
                " is stopped (SIGSTOP))")))
        << run.error();
    for (const auto& [each, worker] : workers) {
      EXPECT_TRUE(worker.ends_within(std::chrono::seconds(1))) << each;
    }
    const auto witness = std::to_string(rank == 0 ? 1 : 0);
    EXPECT_TRUE(fs::exists(folder_ / ("stopped/flight/rank_" + witness)));
    EXPECT_TRUE(
        fs::exists(folder_ / ("stopped/flight/rank" + witness + ".json")));
    for (const auto& [name, is_there] :
         {std::pair("flight", false), std::pair("flight-1", true)}) {
      EXPECT_EQ(
          fs::exists(folder_ / "stopped" / name / "rank_of_an_earlier_run"),
          is_there);
    }
  }
};

TEST_F(WatchedRunTest, OtherRecipesAreNamedByKeyBeforeAnythingBegins) {
  expect_disagreement(
      by_rank(2, "optimizer.lr=0.0$((RANK + 1))"),
      "recipe, optimizer.lr",
      "0.01",
      "0.02");
  expect_disagreement(
      by_rank(2, "mesh.dp=$((2 - RANK)) mesh.tp=$((1 + RANK))"),
      "recipe, mesh.dp",
      "2",
      "1");
}

// One of the two levels has collectives that the other lacks.
TEST_F(WatchedRunTest, DetailOnOneRankAloneIsNamedBeforeAnythingBegins) {
  expect_disagreement(
      by_rank(
          2, "", "[ $RANK = 0 ] || export TORCH_DISTRIBUTED_DEBUG=DETAIL; "),
      "whether TORCH_DISTRIBUTED_DEBUG is DETAIL",
      "no",
      "yes");
}

// A rank that hangs: who waits for it says which process, and that it is
// stopped; nothing of the run is left behind.
TEST_F(WatchedRunTest, AStoppedRankIsNamedAfterTheTimeout) {
  expect_stop_is_named(3, "rank 3 is not responding");
}

// The one that everybody would ask.
TEST_F(WatchedRunTest, AStoppedRank0IsNamedAfterTheTimeout) {
  expect_stop_is_named(0, "Rank 0, which has the store, is not responding");
}

} // namespace
} // namespace weft::test
