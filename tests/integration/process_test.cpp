// The real programs, as a user starts them: launcher and trainer.

#include <cmath>

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::StrEq;

const Words kEndless{"mesh.tp=2", "train.steps=1000000", "eval.every=0"};

TEST_F(ProcessTest, QuickstartTrainsOnTheHeadersOfLibtorch) {
  Process run(
      {WEFT_WEFT,
       "quickstart",
       "--nproc-per-node=1",
       "train.steps=2",
       "eval.every=0",
       "output_dir=first"},
      folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("done: 2 steps, see first"));
  EXPECT_EQ(metrics("first").size(), 2U);
}

TEST_F(ProcessTest, FourRanksTrain) {
  Process run(launched(4, train({"mesh.tp=2"})), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(run.error(), "");
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 6);
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(lines[i].dump());
    Words keys{
        "step",
        "loss",
        "grad_norm",
        "lr",
        "tokens",
        "tokens_per_s",
        "step_ms",
        "data_ms",
        "comm_ms",
        "checkpoint_ms",
        "peak_rss_mb"};
    if (i == 3 || i == 5) {
      keys.push_back("eval_loss");
    }
    Words actual;
    for (const auto& [key, value] : lines[i].items()) {
      actual.push_back(key);
      EXPECT_TRUE(value.is_number()) << key;
    }
    EXPECT_EQ(actual, keys);
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_EQ(lines[i].at("tokens"), (i + 1) * 8 * 32);
    EXPECT_GT(lines[i].at("grad_norm"), 0);
    EXPECT_GT(lines[i].at("step_ms"), lines[i].at("comm_ms"));
    EXPECT_GT(lines[i].at("comm_ms"), 0);
    EXPECT_GT(lines[i].at("peak_rss_mb"), 1);
  }
  EXPECT_NEAR(lines[0].at("loss"), std::log(256), 0.3);
  EXPECT_LT(lines[5].at("loss"), 0.8 * lines[0].at("loss").get<double>());
  EXPECT_LT(lines[5].at("eval_loss"), lines[3].at("eval_loss"));
}

TEST_F(ProcessTest, StandardOutputOfAFileIsPlainLines) {
  Process run(launched(4, train({"mesh.tp=2"})), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  const std::string step = "step ./6  loss .*  grad_norm .*  lr .* tokens/s";
  const std::string eval = "step ./6  eval_loss [0-9.]+";
  EXPECT_THAT(
      lines_of(run.output()),
      ElementsAre(
          MatchesRegex("[0-9:]{8} INFO rank=0 tiny: Llama with 0.0. M "
                       "parameters on dp=2 tp=2.*"),
          MatchesRegex("[0-9:]{8} INFO rank=0 products: (libtorch|onednn).*"),
          MatchesRegex("[0-9:]{8} INFO rank=0 starts from step 0"),
          MatchesRegex(step),
          MatchesRegex(step),
          MatchesRegex(step),
          MatchesRegex(eval),
          MatchesRegex("[0-9:]{8} INFO rank=0 saved step 6 \\([0-9.]+ s\\)"),
          MatchesRegex(step),
          MatchesRegex(eval),
          MatchesRegex(
              "[0-9:]{8} INFO rank=0 done: 6 steps, see outputs/tiny")));
  EXPECT_THAT(run.output(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(run.output(), Not(HasSubstr("\r")));
}

TEST_F(ProcessTest, TheLogLevelLeavesOutLinesBelowIt) {
  auto command = train({"train.steps=1"});
  command.insert(command.end(), {"--log-level", "warning"});
  Process by_flag(command, folder_);
  ASSERT_EQ(by_flag.wait(), 0) << by_flag.error();
  EXPECT_THAT(
      lines_of(by_flag.output()), Each(StartsWith("step 1/1  "))); // no log
  auto words = launched(2, train({"train.steps=2"}));
  words.insert(words.begin() + 1, {"--log-level", "error"});
  Process by_launcher(words, folder_);
  ASSERT_EQ(by_launcher.wait(), 0) << by_launcher.error();
  EXPECT_THAT(lines_of(by_launcher.output()), Each(StartsWith("step 2/2  ")));
  Process refused(train({}), folder_, {{"WEFT_LOG_LEVEL", "loud"}});
  EXPECT_EQ(refused.wait(), 2);
  EXPECT_EQ(
      refused.last_error_line(),
      "ERROR 2 rank=0 op=weft WEFT_LOG_LEVEL: got \"loud\", expected debug, "
      "info, warning or error");
}

TEST_F(ProcessTest, TheResolvedRecipeGivesTheSameRunBitForBit) {
  expect_success(launched(4, train({"mesh.tp=2", "seed=3"})));
  const auto first = losses(metrics());
  ASSERT_EQ(first.size(), 8);
  const auto recipe = test::read_text(folder_ / "outputs/tiny/recipe.yaml");
  EXPECT_THAT(recipe, HasSubstr("dp: 2\n"));
  EXPECT_THAT(recipe, HasSubstr("seed: 3\n"));
  write("again.yaml", recipe);
  expect_success(launched(4, train({"output_dir=again"}, "again.yaml")));
  EXPECT_EQ(losses(metrics("again")), first);
  EXPECT_EQ(
      test::read_text(folder_ / "again/recipe.yaml"),
      replaced(recipe, "outputs/tiny", "again"));
}

TEST_F(ProcessTest, OneRankTrainsAlone) {
  expect_success(train({}));
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 6);
  EXPECT_EQ(lines[0].at("comm_ms"), 0);
  EXPECT_LT(lines[5].at("loss"), 0.8 * lines[0].at("loss").get<double>());
}

TEST_F(ProcessTest, SizesThatTpDoesNotDivideTrain) {
  std::map<int, std::vector<double>> runs;
  for (const int tp : {1, 2, 3}) {
    const std::string output = "tp" + std::to_string(tp);
    expect_success(launched(
        tp,
        train(
            {"mesh.dp=1",
             "mesh.tp=" + std::to_string(tp),
             "model.vocab_size=259",
             "model.ffn_dim=97",
             "data.sequence_length=33",
             "output_dir=" + output})));
    runs[tp] = losses(metrics(output));
    ASSERT_EQ(runs[tp].size(), 8);
  }
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(runs[2][i], runs[1][i], 1e-4) << i;
    EXPECT_NEAR(runs[3][i], runs[1][i], 1e-4) << i;
  }
}

TEST_F(ProcessTest, TorchrunsVariablesAreEnough) {
  const int port = free_port();
  Process second(train({"mesh.tp=2"}), folder_, rank_variables(1, 2, port));
  Process first(train({"mesh.tp=2"}), folder_, rank_variables(0, 2, port));
  EXPECT_EQ(first.wait(), 0) << first.error();
  EXPECT_EQ(second.wait(), 0) << second.error();
  EXPECT_EQ(metrics().size(), 6);
  EXPECT_THAT(first.output(), HasSubstr("on dp=1 tp=2"));
  EXPECT_EQ(second.output(), "");
}

struct Refusal {
  int ranks;
  Words arguments;
  /// Parts of the last line.
  Words parts;
};

class RefusalTest : public ProcessTest {
 protected:
  /// As rank 0 of a world that is never entered.
  void expect_refused(const Refusal& refusal) const {
    SCOPED_TRACE(::testing::PrintToString(refusal.arguments));
    Words words{WEFT_WEFT};
    words.insert(
        words.end(), refusal.arguments.begin(), refusal.arguments.end());
    Process run(
        words,
        folder_,
        {{"RANK", "0"}, {"WORLD_SIZE", std::to_string(refusal.ranks)}});
    EXPECT_EQ(run.wait(), 2);
    EXPECT_EQ(run.output(), "");
    const auto lines = lines_of(run.error());
    ASSERT_EQ(lines.size(), 1) << run.error();
    for (const auto& part : refusal.parts) {
      EXPECT_THAT(lines[0], HasSubstr(part));
    }
    EXPECT_THAT(lines[0], StartsWith("ERROR 2 rank=0 op="));
    EXPECT_FALSE(fs::exists(folder_ / "outputs"));
  }
};

TEST_F(RefusalTest, MistakesInARecipeAreShownWhereTheyStand) {
  write("key.yaml", replaced(kRecipe, "kv_heads", "kv_haeds"));
  write("section.yaml", replaced(kRecipe, "train:", "trian:"));
  write("type.yaml", replaced(kRecipe, "layers: 1", "layers: one"));
  write("open.yaml", replaced(kRecipe, "ffn_dim: 96}", "ffn_dim: 96"));
  write("empty.yaml", "");
  const std::string op = "op=train ";
  for (const Refusal& refusal : {
           Refusal{
               1,
               {"train", "key.yaml"},
               {op + "key.yaml:3:40: model.kv_haeds: unknown key",
                "did you mean model.kv_heads?"}},
           Refusal{
               1,
               {"train", "section.yaml"},
               {op + "section.yaml:5:1: trian: unknown key",
                "did you mean train?"}},
           Refusal{
               1,
               {"train", "type.yaml"},
               {op + "type.yaml:3:26: model.layers: ", "int", "one"}},
           Refusal{1, {"train", "open.yaml"}, {op + "open.yaml:4:"}},
           Refusal{1, {"train", "empty.yaml"}, {op + "empty.yaml", "empty"}},
           Refusal{1, {"train", "no.yaml"}, {op + "no.yaml: No such file"}},
           Refusal{1, {"train", "."}, {op + ".: is a folder"}},
       }) {
    expect_refused(refusal);
  }
}

TEST_F(RefusalTest, MistakesInAnOverrideAreShownByTheOverride) {
  const auto overridden = [&](int ranks, const std::string& text, Words parts) {
    parts.push_back("op=train override " + text + ": ");
    return Refusal{ranks, {"train", "tiny.yaml", text}, parts};
  };
  for (const Refusal& refusal : {
           overridden(
               1,
               "model.haeds=4",
               {"model.haeds: unknown key", "model.heads?"}),
           overridden(1, "nonsense=1", {"nonsense: unknown key", "optimizer"}),
           overridden(1, "model.dim=wide", {"model.dim: ", "\"wide\""}),
           overridden(1, "model.dim=[1", {"not YAML"}),
           overridden(1, "tiny", {"key.path=value"}),
           overridden(
               1,
               "data.paths=[none.txt]",
               {"data.paths[0]: \"none.txt\": No such file"}),
           overridden(
               1, "data.paths=[\"no*.x\"]", {"\"no*.x\": matches no file"}),
           overridden(
               1,
               "data.sequence_length=100000",
               {"a sequence length of 100000 is too long", "tokens"}),
           overridden(
               1, "model.vocab_size=255", {"255 is smaller", "byte, 256"}),
           overridden(
               4,
               "mesh.dp=3",
               {"mesh.dp: ", "dp=3 x tp=1 needs 3 ranks", "world size is 4"}),
           overridden(
               1,
               "train.global_batch_size=9",
               {"train.global_batch_size: 9 is not divisible", "8 or 10"}),
           overridden(1, "optimizer.lr=-1", {"optimizer.lr: ", "at least 0"}),
       }) {
    expect_refused(refusal);
  }
}

TEST_F(RefusalTest, AMeshThatDoesNotFitTheWorldOrTheHeads) {
  for (const Refusal& refusal : {
           Refusal{
               4,
               {"train", "tiny.yaml", "mesh.tp=3"},
               {"tiny.yaml:2:12: mesh.dp: ",
                "world size 4 is not divisible by mesh.tp=3"}},
           Refusal{
               8,
               {"train", "tiny.yaml", "mesh.tp=8"},
               {"tiny.yaml:3:36: model.heads: 12 is not divisible by mesh.tp=8",
                "mesh.tp can be 1, 2, 3, 6 or 12"}},
           Refusal{
               4,
               {"train", "tiny.yaml", "mesh.tp=4"},
               {"tiny.yaml:3:50: model.kv_heads: 6 neither divides mesh.tp=4 "
                "nor is a multiple of it",
                "mesh.tp can be 1, 2, 3, 6 or 12"}},
       }) {
    expect_refused(refusal);
  }
}

TEST_F(RefusalTest, CommandLinesThatMeanNothing) {
  const std::string op = "op=usage ";
  for (const Refusal& refusal : {
           Refusal{1, {}, {op, "See weft --help"}},
           Refusal{1, {"trian"}, {op, "\"trian\"", "did you mean train?"}},
           Refusal{1, {"train"}, {op, "recipe is required"}},
           Refusal{
               1,
               {"train", "tiny.yaml", "--fast"},
               {op, "\"--fast\"", "See weft train --help"}},
           Refusal{
               1, {"bench", "step", "--step=3"}, {op, "did you mean --steps?"}},
           Refusal{1, {"bench", "setp"}, {op, "did you mean step?"}},
           Refusal{1, {"tarin", "--help"}, {op, "did you mean train?"}},
           Refusal{1, {"bench", "start", "--help"}, {op, "\"start\""}},
           Refusal{
               1,
               {"train", "tiny.yaml", "--log-level", "loud"},
               {op, "--log-level", "debug,info,warning,error"}},
       }) {
    expect_refused(refusal);
  }
}

TEST_F(RefusalTest, TheLauncherPassesOneLineOn) {
  Process run(launched(4, train({"model.dmi=64"})), folder_);
  EXPECT_EQ(run.wait(), 2);
  EXPECT_EQ(run.output(), "");
  const auto line =
      "ERROR 2 rank=0 op=train override model.dmi=64: model.dmi: unknown key; "
      "did you mean model.dim?";
  EXPECT_EQ(run.last_error_line(), line);
  for (const auto& said : lines_of(run.error())) {
    if (said.starts_with("ERROR")) {
      EXPECT_EQ(said, line);
    }
  }
}

TEST_F(ProcessTest, EveryCommandHasHelp) {
  for (const Words& command :
       {Words{}, Words{"train"}, Words{"bench"}, Words{"bench", "step"}}) {
    Words words{WEFT_WEFT};
    words.insert(words.end(), command.begin(), command.end());
    words.emplace_back("--help");
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), 0);
    EXPECT_THAT(run.output(), HasSubstr("Usage: "));
    EXPECT_EQ(run.error(), "");
  }
}

TEST_F(ProcessTest, AKilledWorkerEndsTheLaunch) {
  Process run(launched(4, train(kEndless)), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(run));
  const auto workers = workers_of(run.pid());
  ASSERT_EQ(workers.size(), 4);
  kill(workers.at(2).pid(), SIGKILL);
  EXPECT_EQ(run.wait(seconds(10)), 137);
  EXPECT_THAT(
      run.last_error_line(),
      AnyOf(
          StrEq(
              "ERROR 137 rank=2 op=launch worker killed by signal 9 (SIGKILL)"),
          StrEq("ERROR 137 rank=2 op=launch worker killed by signal 9 "
                "(SIGKILL) from another process; not an OOM kill")));
  for (const auto& [rank, worker] : workers) {
    EXPECT_TRUE(worker.ends_within(milliseconds(0))) << rank;
  }
}

TEST_F(ProcessTest, WorkersDoNotOutliveTheLauncher) {
  Process run(launched(4, train(kEndless)), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(run));
  const auto workers = workers_of(run.pid());
  ASSERT_EQ(workers.size(), 4);
  run.send(SIGKILL);
  for (const auto& [rank, worker] : workers) {
    EXPECT_TRUE(worker.ends_within(seconds(1))) << rank;
  }
}

TEST_F(ProcessTest, AStoppedLaunchLeavesNoProcess) {
  Process run(launched(4, train(kEndless)), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(run));
  const auto workers = workers_of(run.pid());
  ASSERT_EQ(workers.size(), 4);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 143 rank="));
  for (const auto& [rank, worker] : workers) {
    EXPECT_TRUE(worker.ends_within(milliseconds(0))) << rank;
  }
}

TEST_F(ProcessTest, ARankThatLosesItsPeerSaysSo) {
  const int port = free_port();
  Process first(train(kEndless), folder_, rank_variables(0, 2, port));
  Process second(train(kEndless), folder_, rank_variables(1, 2, port));
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(first));
  second.send(SIGKILL);
  EXPECT_EQ(first.wait(), 150);
  EXPECT_THAT(
      first.last_error_line(),
      AllOf(
          StartsWith("ERROR 150 rank=0 op=train ["),
          HasSubstr("peer is gone"),
          HasSubstr("rank 0/2")));
}

// Weights that decay by more than themselves grow until they overflow.
const Words kDiverge{
    "mesh.tp=2",
    "train.steps=1000",
    "optimizer.lr=1000",
    "optimizer.weight_decay=1000",
    "train.max_grad_norm=0"};

TEST_F(ProcessTest, ALossThatIsNoNumberStopsAllRanks) {
  const int port = free_port();
  Process first(train(kDiverge), folder_, rank_variables(0, 2, port));
  Process second(train(kDiverge), folder_, rank_variables(1, 2, port));
  EXPECT_EQ(first.wait(), 3);
  EXPECT_EQ(second.wait(), 3);
  const auto step = std::to_string(metrics().size() + 1);
  EXPECT_THAT(
      first.last_error_line(),
      AllOf(
          StartsWith("ERROR 3 rank=0 op=train step " + step + ": the "),
          HasSubstr(" on rank"),
          HasSubstr(". The weights were not updated")));
  EXPECT_EQ(second.error(), "") << "one line is enough";
}

TEST_F(ProcessTest, TheLauncherPassesThePolicyStopOn) {
  Process run(launched(4, train(kDiverge)), folder_);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 3 rank="));
}

} // namespace
} // namespace weft::test
