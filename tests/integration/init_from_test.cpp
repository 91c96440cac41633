// Runs that begin with the weights of another: the real programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class InitFromTest : public ProcessTest {
 protected:
  static Words
  run_words(int dp, int tp, const std::string& output, Words more = {}) {
    Words words{
        "mesh.dp=" + std::to_string(dp),
        "mesh.tp=" + std::to_string(tp),
        "output_dir=" + output};
    words.insert(words.end(), more.begin(), more.end());
    return launched(dp * tp, train(words));
  }

  std::string refused(const Words& more) const {
    Process run(run_words(1, 1, "refused", more), folder_);
    EXPECT_EQ(run.wait(), 2) << run.output();
    return run.last_error_line();
  }
};

TEST_F(InitFromTest, TakesTheWeightsOnAnotherMesh) {
  expect_success(run_words(2, 2, "base"));
  const auto base = metrics("base");
  for (const std::string from : {"base", "base/checkpoints/step-6"}) {
    const auto output = "next-" + std::to_string(from.size());
    Process run(
        run_words(1, 2, output, {"checkpoint.init_from=" + from}), folder_);
    ASSERT_EQ(run.wait(), 0) << run.error();
    EXPECT_THAT(
        run.output(),
        HasSubstr(
            "begins with the weights of base/checkpoints/step-6 (12 tensors)"));
    // Where the other run ended, and not where it began.
    EXPECT_LT(
        metrics(output).front().at("loss").get<double>(),
        0.97 * base.front().at("loss").get<double>());
  }
}

TEST_F(InitFromTest, AdaptersBeginAsAlwaysAndTheWeightsStay) {
  expect_success(run_words(1, 1, "base"));
  const Words adapt{
      "checkpoint.init_from=base",
      "lora.rank=2",
      "lora.targets=[\"**.q_proj\"]"};
  Process run(run_words(2, 2, "adapted", adapt), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("(12 tensors)"));
  Process diff(
      {WEFT_WEFT,
       "checkpoint",
       "diff",
       "base/checkpoints/step-6",
       "adapted/checkpoints/step-6"},
      folder_);
  EXPECT_EQ(diff.wait(), 1);
  const auto text = diff.output() + diff.error();
  EXPECT_THAT(text, HasSubstr("self_attn.q_proj.lora_B.weight"));
  EXPECT_THAT(text, Not(HasSubstr("model.model.layers.0.mlp.up_proj.weight")));
  // Resumed, it goes on from its own checkpoint.
  Process again(
      run_words(
          1,
          2,
          "adapted",
          [&] {
            auto more = adapt;
            more.push_back("train.steps=8");
            return more;
          }()),
      folder_);
  ASSERT_EQ(again.wait(), 0) << again.error();
  EXPECT_THAT(
      again.output(), HasSubstr("resumes from adapted/checkpoints/step-6"));
}

TEST_F(InitFromTest, RefusesWhatIsNoCheckpointOfTheModel) {
  EXPECT_THAT(
      refused({"checkpoint.init_from=nowhere"}),
      AllOf(
          StartsWith("ERROR 2 "),
          HasSubstr("checkpoint.init_from: \"nowhere\" holds no checkpoint")));
  expect_success(run_words(1, 1, "base"));
  EXPECT_THAT(
      refused({"checkpoint.init_from=base", "model.layers=2"}),
      AllOf(HasSubstr("is of another model"), HasSubstr("model.layers.1.")));
  EXPECT_THAT(
      refused({"checkpoint.init_from=base", "model.ffn_dim=60"}),
      AllOf(HasSubstr("checkpoint.init_from"), HasSubstr("mlp")));
}

} // namespace
} // namespace weft::test
