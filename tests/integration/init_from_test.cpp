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
      "lora.target_modules=[\"**.q_proj\"]"};
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
  // Resumed, it resumes from its own checkpoint.
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

// With a learning rate of 0 the weights that are saved are those that it began
// with.
TEST_F(InitFromTest, TakesWhatTheRulesSay) {
  expect_success(run_words(2, 2, "base"));
  const Words still{
      "checkpoint.init_from=base", "optimizer.lr=0", "train.steps=1"};
  const auto begun = [&](const std::string& output, const Words& rules) {
    auto words = still;
    words.insert(words.end(), rules.begin(), rules.end());
    Process run(run_words(1, 2, output, words), folder_);
    EXPECT_EQ(run.wait(), 0) << run.error();
    return run.output();
  };
  const auto differing = [&](const std::string& output) {
    Process diff(
        {WEFT_WEFT,
         "checkpoint",
         "diff",
         "base/checkpoints/step-6",
         output + "/checkpoints/step-1",
         "--json"},
        folder_);
    EXPECT_EQ(diff.wait(), 1) << diff.error();
    return diff.output() + diff.error();
  };
  EXPECT_THAT(
      begun(
          "some",
          {"checkpoint.init_include=[\"model.layers.**\", lm_head.weight]",
           "checkpoint.init_exclude=[\"**.mlp.up_proj.*\"]"}),
      HasSubstr("(9 of the model's 12 tensors; 0 are missing in it, 0 of its "
                "tensors were"));
  EXPECT_THAT(
      differing("some"),
      AllOf(
          HasSubstr("model.model.embed_tokens.weight"),
          HasSubstr("model.model.layers.0.mlp.up_proj.weight"),
          Not(HasSubstr("\"model.model.layers.0.mlp.down_proj.weight")),
          Not(HasSubstr("\"model.lm_head.weight"))));
  EXPECT_THAT(
      begun("deeper", {"model.layers=2", "checkpoint.init_strict=missing_ok"}),
      HasSubstr("(12 of the model's 21 tensors; 9 are missing in it, 0 of its "
                "tensors"));
  // The first layer becomes the second.
  const std::string rename =
      "checkpoint.init_rename=['^model\\.model\\.layers\\.0\\. -> "
      "model.model.layers.1.']";
  EXPECT_THAT(
      begun(
          "moved",
          {"model.layers=2", rename, "checkpoint.init_strict=missing_ok"}),
      HasSubstr("(12 of the model's 21 tensors; 9 are missing in it"));
  EXPECT_THAT(
      differing("moved"),
      HasSubstr("model.model.layers.0.self_attn.q_proj.weight"));
}

TEST_F(InitFromTest, RefusesRulesThatDoNotFit) {
  expect_success(run_words(1, 1, "base"));
  const std::string from = "checkpoint.init_from=base";
  EXPECT_THAT(
      refused({from, "checkpoint.init_include=[\"model.layer.*\"]"}),
      AllOf(
          HasSubstr("checkpoint.init_include: \"model.layer.*\" matches no"),
          HasSubstr("override checkpoint.init_include=")));
  EXPECT_THAT(
      refused({from, "checkpoint.init_exclude=[nothing]"}),
      HasSubstr("checkpoint.init_exclude: \"nothing\" matches no"));
  EXPECT_THAT(
      refused({from, "checkpoint.init_rename=['q_proj -> k_proj']"}),
      AllOf(
          HasSubstr("checkpoint.init_rename: "),
          HasSubstr("Make the pattern narrower")));
  EXPECT_THAT(
      refused({from, "model.layers=2", "checkpoint.init_strict=unexpected_ok"}),
      AllOf(
          HasSubstr("checkpoint.init_from: "),
          HasSubstr("missing"),
          HasSubstr("model.model.layers.1."),
          HasSubstr("checkpoint.init_rename, init_include")));
  EXPECT_THAT(
      refused({from, "checkpoint.init_strict=both_ok", "model.ffn_dim=60"}),
      AllOf(HasSubstr("checkpoint.init_from"), HasSubstr("[60, 48]")));
}

TEST_F(InitFromTest, RefusesWhatIsNoCheckpointOfTheModel) {
  EXPECT_THAT(
      refused({"checkpoint.init_from=nowhere"}),
      AllOf(
          StartsWith("ERROR 2 "),
          HasSubstr("checkpoint.init_from: \"nowhere\" has no checkpoint")));
  expect_success(run_words(1, 1, "base"));
  EXPECT_THAT(
      refused({"checkpoint.init_from=base", "model.layers=2"}),
      AllOf(
          HasSubstr("belongs to another model"), HasSubstr("model.layers.1.")));
  EXPECT_THAT(
      refused({"checkpoint.init_from=base", "model.ffn_dim=60"}),
      AllOf(HasSubstr("checkpoint.init_from"), HasSubstr("mlp")));
}

} // namespace
} // namespace weft::test
