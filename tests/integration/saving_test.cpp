// How runs save: in the background, signed, with an EMA of the weights.

#include <algorithm>
#include <csignal>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class SavingTest : public ProcessTest {
 protected:
  static Words
  run_words(int dp, int tp, const std::string& output, const Words& more = {}) {
    Words words{
        "mesh.dp=" + std::to_string(dp),
        "mesh.tp=" + std::to_string(tp),
        "train.global_batch_size=12",
        "train.micro_batch_size=" + std::to_string(12 / dp),
        "model.kv_heads=12",
        "checkpoint.every=2",
        "checkpoint.keep=0",
        "output_dir=" + output};
    words.insert(words.end(), more.begin(), more.end());
    return launched(dp * tp, train(words));
  }

  /// A run's first steps, as a run of its own.
  void copy_start(const std::string& from, const std::string& to, int step)
      const {
    const auto name = "checkpoints/step-" + std::to_string(step);
    fs::create_directories(folder_ / to / "checkpoints");
    fs::copy(
        folder_ / from / name,
        folder_ / to / name,
        fs::copy_options::recursive);
    fs::copy(folder_ / from / "metrics.jsonl", folder_ / to / "metrics.jsonl");
  }

  int diff(const std::string& a, const std::string& b) const {
    Process run({WEFT_WEFT, "checkpoint", "diff", a, b}, folder_);
    return run.wait().value_or(-1);
  }

  std::string output_of(const Words& words) const {
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), 0) << run.output() << run.error();
    return run.output();
  }

  std::string refused(int code, const Words& words) const {
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), code) << run.output();
    return run.last_error_line();
  }
};

// A slow save does not hold training up, and is waited for at the end.
TEST_F(SavingTest, TrainingGoesOnWhileItIsWritten) {
  // About 12 MB a rank, in pieces of one that wait for each other.
  const auto output = output_of(run_words(
      1,
      2,
      "run",
      {"checkpoint.max_mb_per_s=8",
       "model.vocab_size=20000",
       "train.global_batch_size=4",
       "train.micro_batch_size=4",
       "eval.batches=0"}));
  const std::regex said(
      "saved step 2 \\(([0-9.]+) s in the background, ([0-9.]+) s blocked\\)");
  std::smatch numbers;
  ASSERT_TRUE(std::regex_search(output, numbers, said)) << output;
  const double background = std::stod(numbers[1]);
  EXPECT_GT(background, 0.5);
  EXPECT_LT(std::stod(numbers[2]), 0.5 * background);
  EXPECT_LT(
      metrics("run")[1].at("checkpoint_ms").get<double>(), 500 * background);
  EXPECT_THAT(output, HasSubstr("saved step 6 ("));
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/step-4/manifest.json"));
}

TEST_F(SavingTest, InTheBackgroundAndNotTheSameIsSaved) {
  output_of(run_words(2, 2, "back", {"checkpoint.async=true"}));
  const auto output = output_of(run_words(
      2, 2, "wait", {"checkpoint.async=false", "checkpoint.fsync=false"}));
  EXPECT_THAT(output, Not(HasSubstr("background")));
  for (const std::string step : {"step-2", "step-4", "step-6"}) {
    EXPECT_EQ(diff("back/checkpoints/" + step, "wait/checkpoints/" + step), 0)
        << step;
  }
}

// As hosts whose output_dir is a disk of their own.
TEST_F(SavingTest, RanksThatSeeDifferentFoldersAreTold) {
  auto words = run_words(1, 2, "run", {"train.steps=2"});
  const auto program = std::find(words.begin(), words.end(), "--") + 1;
  words.insert(
      program,
      {"sh",
       "-c",
       "mkdir -p host$RANK && cp -r *.yaml *.txt host$RANK/ && cd host$RANK && "
       "exec \"$@\"",
       "sh"});
  const auto line = refused(4, words);
  EXPECT_THAT(line, HasSubstr("could not be saved"));
  Process again(words, folder_);
  again.wait();
  EXPECT_THAT(
      again.output() + again.error(),
      AllOf(
          HasSubstr("shard-00001-00000.safetensors"),
          HasSubstr("a folder that all hosts share")));
}

TEST_F(SavingTest, SignedCheckpointsNeedTheirKey) {
  write("key", "0123456789abcdef0123\n");
  write("other", "another key of 20 bytes");
  write("short", "short\n");
  const Words with_key{"checkpoint.hmac_key_file=key"};
  EXPECT_THAT(
      refused(2, run_words(1, 2, "run", {"checkpoint.hmac_key_file=short"})),
      AllOf(
          HasSubstr("checkpoint.hmac_key_file: \"short\""),
          HasSubstr("16 to 4096 bytes")));
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  EXPECT_THAT(
      output_of(run_words(1, 2, "run", with_key)),
      HasSubstr("checkpoint.hmac_key_file: other users can read this key"));
  const auto manifest =
      test::read_text(folder_ / "run/checkpoints/step-6/manifest.json");
  EXPECT_THAT(manifest, AllOf(HasSubstr("sha256"), HasSubstr("hmac_sha256")));
  EXPECT_THAT(manifest, Not(HasSubstr("0123456789abcdef0123")));
  EXPECT_THAT(
      output_of(run_words(
          2, 1, "run", {"checkpoint.hmac_key_file=key", "train.steps=8"})),
      HasSubstr("resumes from run/checkpoints/step-6"));
  output_of(
      {WEFT_WEFT,
       "eval",
       "tiny.yaml",
       "model.kv_heads=12",
       "output_dir=run",
       "checkpoint.hmac_key_file=key"});
  EXPECT_THAT(
      refused(
          4,
          run_words(
              1,
              2,
              "run",
              {"checkpoint.hmac_key_file=other", "train.steps=9"})),
      HasSubstr("none of the 4 checkpoints in run/checkpoints"));
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/step-8"));
  // One without a signature is not taken for one with.
  output_of(run_words(1, 1, "plain"));
  EXPECT_THAT(
      refused(4, run_words(1, 1, "plain", with_key)),
      HasSubstr("none of the 3 checkpoints"));
  EXPECT_THAT(
      refused(
          4,
          {WEFT_WEFT,
           "eval",
           "tiny.yaml",
           "model.kv_heads=12",
           "output_dir=plain",
           "checkpoint.hmac_key_file=key"}),
      HasSubstr("checkpoint"));
}

const Words kAveraged{"ema={decay: 0.9, eval: true}", "train.steps=8"};

TEST_F(SavingTest, AnAverageGoesOnBitForBit) {
  output_of(run_words(2, 2, "straight", kAveraged));
  copy_start("straight", "again", 4);
  output_of(run_words(2, 2, "again", kAveraged));
  EXPECT_EQ(diff("straight/checkpoints/step-8", "again/checkpoints/step-8"), 0);
  const auto last = metrics("again").back();
  EXPECT_EQ(
      last.at("ema_eval_loss"), metrics("straight").back().at("ema_eval_loss"));
  EXPECT_GT(
      last.at("ema_eval_loss").get<double>(),
      last.at("eval_loss").get<double>());

  // On another mesh to rounding.
  copy_start("straight", "other", 4);
  output_of(run_words(3, 1, "other", kAveraged));
  EXPECT_NEAR(
      metrics("other").back().at("ema_eval_loss").get<double>(),
      last.at("ema_eval_loss").get<double>(),
      1e-4);
}

TEST_F(SavingTest, AnAverageMayBeginLate) {
  output_of(run_words(1, 2, "run"));
  const auto output = output_of(run_words(1, 2, "run", kAveraged));
  EXPECT_THAT(
      output,
      HasSubstr(
          "ema: the checkpoint has no average; it begins at the weights"));
  // And end again.
  EXPECT_THAT(
      output_of(run_words(1, 2, "run", {"train.steps=10"})),
      HasSubstr("resumes from run/checkpoints/step-8"));
}

TEST_F(SavingTest, TheAverageIsEvaluatedAndExported) {
  write("other.yaml", "data: {paths: [corpus.txt], sequence_length: 32}\n");
  output_of(run_words(2, 2, "run", kAveraged));
  const auto loss_of = [&](const std::string& weights, int tp) {
    Words words{
        WEFT_WEFT,
        "eval",
        "tiny.yaml",
        "--json",
        "--weights",
        weights,
        "model.kv_heads=12",
        "mesh.tp=" + std::to_string(tp),
        "output_dir=run"};
    return nlohmann::json::parse(output_of(launched(tp, words)))
        .at("loss")
        .get<double>();
  };
  const double averaged = loss_of("ema", 1);
  EXPECT_GT(averaged, loss_of("model", 1));
  EXPECT_NEAR(loss_of("ema", 2), averaged, 1e-4);

  // And exported.
  output_of(
      {WEFT_WEFT, "checkpoint", "export", "run", "averaged", "--weights=ema"});
  const auto exported = nlohmann::json::parse(output_of(
      {WEFT_WEFT,
       "eval",
       "other.yaml",
       "--json",
       "model.from=averaged",
       "output_dir=none"}));
  EXPECT_NEAR(exported.at("loss").get<double>(), averaged, 1e-6);

  output_of(run_words(1, 1, "plain"));
  EXPECT_THAT(
      refused(
          2,
          {WEFT_WEFT, "checkpoint", "export", "plain", "no", "--weights=ema"}),
      HasSubstr(" has no EMA weights"));
  EXPECT_THAT(
      refused(
          2,
          {WEFT_WEFT,
           "eval",
           "tiny.yaml",
           "--weights=ema",
           "model.kv_heads=12",
           "output_dir=plain"}),
      HasSubstr("has no EMA weights. Train with ema.decay"));
}

} // namespace
} // namespace weft::test
