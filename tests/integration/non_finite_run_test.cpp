// Runs with a number that is none: the real program, with a model that has one
// element of one gradient wrong on one rank (faulty_weft.cpp).

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kFaultyRecipe = R"(name: faulty
mesh: {dp: -1, tp: 1}
model: {type: faulty}
data: {paths: [corpus.txt], sequence_length: 16}
train: {steps: 8, global_batch_size: 8}
optimizer: {lr: 1.0e-2}
ema: {decay: 0.9}
eval: {batches: 0}
checkpoint: {every: 1, keep: 0}
)";

class NonFiniteRunTest : public ProcessTest {
 protected:
  NonFiniteRunTest() { write("faulty.yaml", kFaultyRecipe); }

  static Words
  faulty(int dp, int tp, const std::string& output, const Words& more = {}) {
    Words words{
        WEFT_FAULTY,
        "train",
        "faulty.yaml",
        "mesh.dp=" + std::to_string(dp),
        "mesh.tp=" + std::to_string(tp),
        "output_dir=" + output};
    words.insert(words.end(), more.begin(), more.end());
    return launched(dp * tp, words);
  }

  Process start(const Words& words, const std::string& faults) const {
    return Process(words, folder_, {{"WEFT_FAULT", faults}});
  }

  std::string latest(const std::string& output) const {
    return test::read_text(folder_ / output / "checkpoints/latest");
  }

  void expect_same_end(const std::string& a, const std::string& b) const {
    Process diff(
        {WEFT_WEFT,
         "checkpoint",
         "diff",
         a + "/checkpoints/step-8",
         b + "/checkpoints/step-8"},
        folder_);
    EXPECT_EQ(diff.wait(), 0) << diff.output() << diff.error();
  }

  static std::vector<std::string> all_losses(const Metrics& metrics) {
    std::vector<std::string> result;
    for (const auto& line : metrics) {
      result.push_back(line.at("loss").dump() + line.at("grad_norm").dump());
    }
    return result;
  }
};

// A replica group that computes several lanes of a step: each of them counts.
TEST_F(NonFiniteRunTest, AnyLaneOfAGroupIsExplained) {
  for (const int lane : {0, 2, 3}) {
    SCOPED_TRACE(lane);
    auto words = faulty(
        1,
        1,
        "lane" + std::to_string(lane),
        {"train.micro_batch_size=2", "elastic.batch=exact", "elastic.lanes=4"});
    words.insert(words.begin() + 1, "--replica-size=1");
    // A step is four backwards: this is in the second step.
    auto run =
        start(words, "0 " + std::to_string(5 + lane) + " down.weight nan");
    EXPECT_EQ(run.wait(), 3) << run.error();
    EXPECT_THAT(
        run.error(),
        HasSubstr("step 2: the gradient of down.weight is nan on rank 0."));
  }
}

// What was saved before is valid: the run resumes from it and ends as one that
// had no fault.
TEST_F(NonFiniteRunTest, StopEndsAllRanksAtThatStepAndSavesNothingOfIt) {
  struct Layout {
    int dp;
    int tp;
    std::string value;
    std::string said;
  };
  const std::vector<Layout> layouts{
      {1, 1, "nan", "is nan"},
      {2, 1, "inf", "is inf"},
      {1, 2, "1e38", "reaches 1e+38, too large for a norm,"},
      {2, 2, "nan", "is nan"}};
  std::mt19937 random(16);
  for (const auto& [dp, tp, value, said] : layouts) {
    const auto rank = std::to_string(random() % (dp * tp));
    const auto step = 1 + random() % 7;
    const std::string name = random() % 2 == 0 ? "up.weight" : "down.weight";
    const auto output = std::to_string(dp) + "x" + std::to_string(tp);
    SCOPED_TRACE(output + " rank " + rank + " step " + std::to_string(step));
    expect_success(faulty(dp, tp, "straight" + output));
    const auto words = faulty(dp, tp, output);
    auto run = start(
        words, rank + " " + std::to_string(step) + " " + name + " " + value);
    EXPECT_EQ(run.wait(), 3) << run.error();
    EXPECT_THAT(
        run.last_error_line(),
        StartsWith(
            "ERROR 3 rank=0 op=train step " + std::to_string(step) +
            ": the gradient of " + name + " " + said + " on rank " + rank +
            ". The weights were not updated"));
    EXPECT_EQ(metrics(output).size(), step - 1);
    EXPECT_EQ(
        latest(output),
        step == 1 ? "" : "step-" + std::to_string(step - 1) + "\n");
    expect_success(words);
    expect_same_end("straight" + output, output);
  }
}

// The run is preempted between them, too: by a signal in the backward of step 4
// on a rank.
TEST_F(NonFiniteRunTest, SkippedStepsAreSkippedAlikeInAResumedRun) {
  const auto words = [](const std::string& output) {
    return faulty(2, 2, output, {"train.on_non_finite=skip"});
  };
  auto straight = start(
      words("straight"),
      "2 1 up.weight nan, 1 3 down.weight inf, "
      "1 4 down.bias 1e38, 0 6 up.weight -inf");
  ASSERT_EQ(straight.wait(), 0) << straight.error();
  const auto lines = metrics("straight");
  ASSERT_EQ(lines.size(), 8);
  for (const auto& line : lines) {
    const int step = line.at("step");
    const bool is_skipped = step == 1 || step == 3 || step == 4 || step == 6;
    EXPECT_EQ(line.contains("skipped"), is_skipped) << line;
    EXPECT_EQ(line.at("grad_norm").is_null(), is_skipped) << line;
  }
  EXPECT_THAT(
      straight.output(),
      AllOf(
          HasSubstr("step 3 skipped, 1 in a row of at most 10: the gradient of "
                    "down.weight is inf on rank 1\n"),
          HasSubstr("step 4 skipped, 2 in a row of at most 10: the gradient of "
                    "down.bias reaches 1e+38, too large for a norm, on rank "
                    "1\n")));
  EXPECT_EQ(straight.error(), "");

  auto first = start(
      words("stopped"),
      "2 1 up.weight nan, 1 3 down.weight inf, "
      "1 4 down.bias 1e38, 3 4 down.weight TERM");
  EXPECT_EQ(first.wait(), 143) << first.error();
  EXPECT_THAT(
      first.last_error_line(),
      StartsWith("ERROR 143 rank=0 op=train SIGTERM on rank 3: step 4 is "
                 "saved in stopped/checkpoints"));
  EXPECT_EQ(latest("stopped"), "step-4\n");
  auto second = start(words("stopped"), "0 2 up.weight -inf");
  EXPECT_EQ(second.wait(), 0) << second.error();
  expect_same_end("straight", "stopped");
  EXPECT_EQ(all_losses(metrics("stopped")), all_losses(lines));
}

TEST_F(NonFiniteRunTest, TheCapCountsOverRestarts) {
  const auto words = [](const std::string& output) {
    return faulty(
        2,
        1,
        output,
        {"train.on_non_finite=skip", "train.max_consecutive_non_finite=3"});
  };
  const std::string end =
      "ERROR 3 rank=0 op=train step 6: the gradient of up.weight is nan on "
      "rank 1. The weights were not updated, as in the previous 3 steps";
  auto straight = start(
      words("straight"),
      "1 3 up.weight nan, 1 4 up.weight nan, 1 5 up.weight nan, "
      "1 6 up.weight nan");
  EXPECT_EQ(straight.wait(), 3);
  EXPECT_THAT(straight.last_error_line(), StartsWith(end));
  EXPECT_EQ(latest("straight"), "step-5\n") << "the weights of step 2";
  auto first = start(
      words("stopped"),
      "1 3 up.weight nan, 1 4 up.weight nan, 0 4 up.weight USR1");
  EXPECT_EQ(first.wait(), 143) << first.error();
  EXPECT_THAT(first.last_error_line(), HasSubstr("SIGUSR1 on rank 0: step 4"));
  auto second = start(words("stopped"), "1 1 up.weight nan, 1 2 up.weight nan");
  EXPECT_EQ(second.wait(), 3);
  EXPECT_THAT(second.last_error_line(), StartsWith(end));
}

} // namespace
} // namespace weft::test
