// Ranks that a real Slurm starts: one controller and two nodes on this machine.

#include <algorithm>
#include <memory>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/clusters_doc.h"
#include "tests/integration/own_address.h"
#include "tests/integration/process_fixture.h"
#include "tests/integration/slurm_cluster.h"

namespace weft::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class SlurmTest : public ProcessTest {
 protected:
  void SetUp() override {
    const auto obstacle = SlurmCluster::obstacle();
    if (!obstacle.empty()) {
      GTEST_SKIP() << "no Slurm: " << obstacle;
    }
    try {
      slurm_ = std::make_unique<SlurmCluster>(folder_ / "slurm");
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << "Slurm does not start here: " << error.what();
    }
  }

  void TearDown() override {
    if (slurm_) {
      EXPECT_THAT(slurm_->end(), IsEmpty()) << "still runs";
    }
  }

  static Words quickstart(const std::string& output, const Words& overrides) {
    Words words = train(
        {"output_dir=" + output, "data.paths=[corpus.txt]"},
        WEFT_RECIPES "/quickstart.yaml");
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }

  static Words short_run(const std::string& output) {
    return quickstart(
        output, {"train.steps=4", "eval.every=2", "eval.batches=2"});
  }

  /// Under weftrun.
  std::vector<double> expected(const Words& command) const {
    expect_success(launched(4, command));
    return losses(metrics("expected"));
  }

  /// The losses of short_run(), which runs once for all tests.
  const std::vector<double>& expected_of_short_run() const {
    static const auto same = expected(short_run("expected"));
    return same;
  }

  Process srun(
      const Words& options,
      const Words& command,
      const Process::Variables& more = {}) const {
    Words words{find_program("srun")};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), command.begin(), command.end());
    auto variables = slurm_->variables();
    variables.insert(more.begin(), more.end());
    return Process(words, folder_, variables);
  }

  /// The number of the job whose batch script runs `command` with srun.
  std::string sbatch(const Words& options, const Words& command) const {
    std::string script = "#!/bin/bash\n#SBATCH --ntasks=4 --output=job.txt\n";
    for (const auto& option : options) {
      script += "#SBATCH " + option + "\n";
    }
    script += "srun --kill-on-bad-exit=1";
    for (const auto& word : command) {
      script += " '" + word + "'";
    }
    write("job.sh", script + "\n");
    const Words words{
        "sbatch",
        "--parsable",
        "--chdir=" + folder_.string(),
        (folder_ / "job.sh").string()};
    return lines_of(slurm_->ask(words)).at(0);
  }

  /// Runs a script of docs/clusters.md on two nodes of four ranks.
  void expect_trains(const std::string& script, const std::string& address)
      const {
    write("recipe.yaml", recipe_of_docs());
    write("job.sh", script);
    auto variables = path_with_weft();
    variables.merge(slurm_->variables());
    // No resolver knows the nodes' names.
    variables["MASTER_ADDR"] = address;
    Process sbatch(
        {find_program("sbatch"), "--parsable", "--output=job.txt", "job.sh"},
        folder_,
        variables);
    ASSERT_EQ(sbatch.wait(), 0) << sbatch.error();
    const auto job = lines_of(sbatch.output()).at(0);
    ASSERT_NO_FATAL_FAILURE(
        wait_until(job, [&] { return state_of(job) == "COMPLETED"; }));
    EXPECT_THAT(
        test::read_text(folder_ / "job.txt"), HasSubstr("on dp=2 tp=4"));
    EXPECT_EQ(metrics().size(), 6);
  }

  std::string state_of(const std::string& job) const {
    const auto text = slurm_->ask({"scontrol", "-o", "show", "job", job});
    const std::string key = " JobState=";
    const auto begin = text.find(key) + key.size();
    return text.substr(begin, text.find(' ', begin) - begin);
  }

  template <class Condition>
  void wait_until(const std::string& job, const Condition& condition) const {
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end)
          << state_of(job) << "\n"
          << test::read_text(folder_ / "job.txt");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  std::unique_ptr<SlurmCluster> slurm_;
};

TEST_F(SlurmTest, SrunsTasksTrainLikeWeftrunsWorkers) {
  const auto& same = expected_of_short_run();
  ASSERT_EQ(same.size(), 6);
  auto one = srun({"--nodes=1", "--ntasks=4"}, short_run("one"));
  EXPECT_EQ(one.wait(), 0) << one.error();
  EXPECT_THAT(one.output(), HasSubstr("on dp=2 tp=2"));
  EXPECT_EQ(losses(metrics("one")), same);

  // The nodes have names that no resolver knows.
  const auto address = own_address();
  if (address.empty()) {
    GTEST_SKIP() << "two nodes: this machine has only loopback addresses";
  }
  auto two = srun(
      {"--nodes=2", "--ntasks-per-node=2"},
      short_run("two"),
      {{"MASTER_ADDR", address}});
  EXPECT_EQ(two.wait(), 0) << two.error();
  EXPECT_EQ(losses(metrics("two")), same);
}

TEST_F(SlurmTest, WeftrunIsATaskOfSrun) {
  const auto& same = expected_of_short_run();
  auto run = srun({"--ntasks=1"}, launched(4, short_run("run")));
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(losses(metrics("run")), same);
}

TEST_F(SlurmTest, ABatchScriptTrainsTheSame) {
  const auto& same = expected_of_short_run();
  const auto job = sbatch({"--nodes=1"}, short_run("run"));
  ASSERT_NO_FATAL_FAILURE(
      wait_until(job, [&] { return state_of(job) == "COMPLETED"; }));
  EXPECT_THAT(test::read_text(folder_ / "job.txt"), HasSubstr("on dp=2 tp=2"));
  EXPECT_EQ(losses(metrics("run")), same);
}

// Slurm ends the first run with SIGTERM, which has it save its step.
TEST_F(SlurmTest, ARequeuedJobGoesOnWhereItWasBitForBit) {
  const auto command = [](const std::string& output) {
    return quickstart(output, {"train.steps=30", "eval.every=0"});
  };
  const auto same = expected(command("expected"));
  const auto job =
      sbatch({"--nodes=1 --requeue --open-mode=append"}, command("run"));
  ASSERT_NO_FATAL_FAILURE(wait_until(
      job, [&] { return lines_of(metrics_text("run")).size() > 3; }));
  slurm_->ask({"scontrol", "requeue", job});
  ASSERT_NO_FATAL_FAILURE(
      wait_until(job, [&] { return state_of(job) == "PENDING"; }));
  const auto before = metrics_so_far("run").size();
  EXPECT_LT(before, 30);
  // Slurm would wait two minutes. It sets that time when the last task has
  // ended, which can be after the job is pending.
  ASSERT_NO_FATAL_FAILURE(wait_until(job, [&] {
    if (state_of(job) != "PENDING") {
      return true;
    }
    try {
      slurm_->ask({"scontrol", "update", "jobid=" + job, "starttime=now"});
    } catch (const std::runtime_error&) { // It has started since.
    }
    return false;
  }));
  ASSERT_NO_FATAL_FAILURE(
      wait_until(job, [&] { return state_of(job) == "COMPLETED"; }));
  const auto said = test::read_text(folder_ / "job.txt");
  EXPECT_THAT(said, HasSubstr("is saved in run/checkpoints"));
  EXPECT_THAT(
      said,
      HasSubstr("resumes from run/checkpoints/step-" + std::to_string(before)))
      << said;
  EXPECT_EQ(losses(metrics("run")), same);
}

TEST_F(SlurmTest, TheScriptsOfTheDocumentTrainOnTwoNodes) {
  const auto address = own_address();
  if (address.empty()) {
    GTEST_SKIP() << "this machine has only loopback addresses";
  }
  ASSERT_NO_FATAL_FAILURE(expect_trains(script_in_docs("Slurm", 0), address));
  fs::remove_all(folder_ / "outputs");
  auto script = script_in_docs("Slurm", 2);
  const auto begin = script.find("$(scontrol show hostnames");
  const auto end = script.find("head -n 1)", begin);
  ASSERT_NE(end, std::string::npos) << script;
  script.replace(begin, end + 10 - begin, address);
  expect_trains(script, address);
}

TEST_F(SlurmTest, ATasksExitCodeAndReasonAreSruns) {
  auto run = srun({"--ntasks=4"}, quickstart("run", {"model.dmi=64"}));
  EXPECT_EQ(run.wait(), 2);
  const auto lines = lines_of(run.error());
  EXPECT_EQ(
      std::ranges::count_if(
          lines, [](auto& line) { return line.starts_with("ERROR 2 rank="); }),
      4)
      << run.error();
}

} // namespace
} // namespace weft::test
