// Runs that are preempted and go on: the real programs, with SIGTERM.

#include <algorithm>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kStepsOfRun = 40;

class PreemptTest : public ProcessTest {
 protected:
  static Words settings(int dp, int tp, const std::string& output) {
    return {
        "mesh.dp=" + std::to_string(dp),
        "mesh.tp=" + std::to_string(tp),
        "train.steps=" + std::to_string(kStepsOfRun),
        "eval.every=7",
        "ema.decay=0.9",
        "output_dir=" + output};
  }

  void wait_for_metrics(Process& run, const std::string& output) const {
    while (lines_of(metrics_text(output)).size() < 3) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.output() << run.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  /// The last step that the run did.
  int64_t expect_preempted(
      Process& run,
      const std::string& output,
      const std::string& who = "SIGTERM") const {
    EXPECT_EQ(run.wait(), 143) << run.output() << run.error();
    const auto step = static_cast<int64_t>(metrics(output).size());
    EXPECT_LT(step, kStepsOfRun);
    EXPECT_EQ(
        test::read_text(folder_ / output / "checkpoints/latest"),
        "step-" + std::to_string(step) + "\n");
    EXPECT_THAT(
        run.last_error_line(),
        AllOf(
            StartsWith("ERROR 143 rank="),
            HasSubstr(
                "op=train " + who + ": step " + std::to_string(step) +
                " is saved in " + output + "/checkpoints")));
    return step;
  }

  void expect_same_end(const std::string& a, const std::string& b) const {
    const auto step = "/checkpoints/step-" + std::to_string(kStepsOfRun);
    Process diff(
        {WEFT_WEFT, "checkpoint", "diff", a + step, b + step}, folder_);
    EXPECT_EQ(diff.wait(), 0) << diff.output() << diff.error();
    EXPECT_EQ(losses(metrics(a)), losses(metrics(b)));
  }
};

TEST_F(PreemptTest, SavesTheStepAndGoesOnBitForBit) {
  expect_success(launched(4, train(settings(2, 2, "straight"))));
  const auto words = launched(4, train(settings(2, 2, "stopped")));
  int64_t step = 0;
  {
    Process run(words, folder_);
    ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "stopped"));
    run.send(SIGTERM);
    step = expect_preempted(run, "stopped");
  }
  Process rest(words, folder_);
  ASSERT_EQ(rest.wait(), 0) << rest.error();
  EXPECT_THAT(
      rest.output(),
      HasSubstr(
          "resumes from stopped/checkpoints/step-" + std::to_string(step) +
          ": step " + std::to_string(step) + ", " + std::to_string(step * 8) +
          " samples"));
  expect_same_end("straight", "stopped");
}

TEST_F(PreemptTest, OneRankThatIsToldEndsAll) {
  Process run(launched(4, train(settings(2, 2, "run"))), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "run"));
  const auto workers = workers_of(run.pid());
  ASSERT_TRUE(workers.contains(3));
  kill(workers.at(3).pid(), SIGTERM);
  expect_preempted(run, "run", "SIGTERM on rank 3");
}

// And asked twice it saves all the same.
TEST_F(PreemptTest, AProcessAloneSavesToo) {
  expect_success(train(settings(1, 1, "straight")));
  {
    Process run(train(settings(1, 1, "alone")), folder_);
    ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "alone"));
    run.send(SIGTERM);
    run.send(SIGTERM);
    expect_preempted(run, "alone");
  }
  expect_success(train(settings(1, 1, "alone")));
  expect_same_end("straight", "alone");
}

TEST_F(PreemptTest, AStepThatIsSavedAnywayIsSavedOnce) {
  auto words = settings(1, 2, "run");
  words.insert(words.end(), {"checkpoint.every=1", "checkpoint.keep=0"});
  Process run(launched(2, train(words)), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "run"));
  run.send(SIGTERM);
  const auto step = expect_preempted(run, "run");
  const auto lines = lines_of(run.output());
  for (int64_t i = 1; i <= step; ++i) {
    const auto said = "saved step " + std::to_string(i) + " (";
    EXPECT_EQ(
        std::ranges::count_if(
            lines,
            [&](const auto& line) {
              return line.find(said) != std::string::npos;
            }),
        1)
        << said << run.output();
  }
}

TEST_F(PreemptTest, AStepThatCannotBeSavedLosesNothingElse) {
  fs::create_directories(folder_ / "run/checkpoints");
  for (int step = 2; step <= kStepsOfRun; ++step) {
    write("run/checkpoints/step-" + std::to_string(step), "mine");
  }
  auto words = settings(1, 2, "run");
  words.emplace_back("checkpoint.every=1");
  Process run(launched(2, train(words)), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "run"));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr(
          "ended after step " + std::to_string(metrics("run").size()) +
          ", which could not be saved in run/checkpoints, tried twice"));
  EXPECT_TRUE(fs::is_directory(folder_ / "run/checkpoints/step-1"));
}

} // namespace
} // namespace weft::test
