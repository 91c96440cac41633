// Ranks as srun, mpirun and mpiexec start them, by the variables that they set;
// and as the real mpirun and torchrun do. For the real srun: slurm_test.cpp.

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/clusters_doc.h"
#include "tests/integration/own_address.h"
#include "tests/integration/process_fixture.h"
#include "tests/integration/slurm_cluster.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Variables = Process::Variables;

/// The batch script of a job of two tasks. The process's number makes the port.
Variables batch_script() {
  return {
      {"SLURM_JOB_ID", std::to_string(getpid())},
      {"SLURM_JOB_NODELIST", "vm"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "0"},
      {"SLURM_NTASKS", "2"},
      {"SLURM_PROCID", "0"},
      {"SLURM_TASKS_PER_NODE", "2"}};
}

Variables srun(int rank) {
  auto variables = batch_script();
  variables["SLURM_PROCID"] = variables["SLURM_LOCALID"] = std::to_string(rank);
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_STEP_NODELIST"] = "vm";
  variables["SLURM_STEP_NUM_TASKS"] = "2";
  variables["SLURM_STEP_TASKS_PER_NODE"] = "2";
  return variables;
}

Variables mpirun(int rank) {
  const auto own = std::to_string(rank);
  return {
      {"OMPI_COMM_WORLD_LOCAL_RANK", own},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"OMPI_COMM_WORLD_RANK", own},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"PMIX_NAMESPACE", std::to_string(getpid())},
      {"PMIX_RANK", own}};
}

/// In a Slurm job, where Hydra's proxy is a task of srun.
Variables mpiexec(int rank) {
  auto variables = batch_script();
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_STEP_NODELIST"] = "vm";
  variables["SLURM_STEP_NUM_TASKS"] = "1";
  variables["SLURM_STEP_TASKS_PER_NODE"] = "1";
  variables["MPI_LOCALNRANKS"] = variables["PMI_SIZE"] = "2";
  variables["MPI_LOCALRANKID"] = variables["PMI_RANK"] = std::to_string(rank);
  return variables;
}

class ClustersTest : public ProcessTest {
 protected:
  std::vector<double> losses_of(Variables (*launcher)(int)) const {
    const auto command = train({"mesh.tp=2", "output_dir=run"});
    Process second(command, folder_, launcher(1));
    Process first(command, folder_, launcher(0));
    EXPECT_EQ(first.wait(), 0) << first.error();
    EXPECT_EQ(second.wait(), 0) << second.error();
    EXPECT_THAT(first.output(), HasSubstr("on dp=1 tp=2"));
    EXPECT_EQ(second.output(), "");
    auto result = losses(metrics("run"));
    fs::remove_all(folder_ / "run");
    return result;
  }

  /// Four ranks of the real `launcher` compute what weftrun's do.
  void expect_same_losses(const Words& launcher) const {
    const Words overrides{"mesh.dp=2", "mesh.tp=2"};
    expect_success(launched(4, train(overrides)));
    const auto expected = losses(metrics());
    ASSERT_EQ(expected.size(), 8);
    fs::remove_all(folder_ / "outputs");

    auto words = launcher;
    const auto command = train(overrides);
    words.insert(words.end(), command.begin(), command.end());
    Process run(words, folder_, {{"TMPDIR", folder_}});
    ASSERT_EQ(run.wait(), 0) << run.error();
    EXPECT_THAT(run.output(), HasSubstr("on dp=2 tp=2"));
    EXPECT_EQ(losses(metrics()), expected);
  }
};

TEST_F(ClustersTest, EveryLaunchersRanksTrainTheSame) {
  const auto expected = losses_of(+[](int rank) {
    static const int port = free_port();
    return rank_variables(rank, 2, port);
  });
  ASSERT_EQ(expected.size(), 8);
  EXPECT_EQ(losses_of(srun), expected);
  EXPECT_EQ(losses_of(mpirun), expected);
  EXPECT_EQ(losses_of(mpiexec), expected);
}

TEST_F(ClustersTest, OpenMpisMpirunStartsRanks) {
  const auto mpirun = find_program("mpirun");
  if (mpirun.empty()) {
    GTEST_SKIP() << "no mpirun";
  }
  expect_same_losses(
      {mpirun,
       "--allow-run-as-root",
       "--oversubscribe",
       "--mca",
       "oob_tcp_if_include",
       "lo",
       "-n",
       "4"});
}

TEST_F(ClustersTest, TorchrunStartsRanks) {
  if (!fs::exists(WEFT_TORCHRUN)) {
    GTEST_SKIP() << "no .venv-peer with torchrun (make peer)";
  }
  expect_same_losses({WEFT_TORCHRUN, "--no-python", "--nproc-per-node", "4"});
}

TEST_F(ClustersTest, TheLoopOfTheDocumentStartsTwoHosts) {
  const auto address = own_address();
  if (address.empty()) {
    GTEST_SKIP() << "this machine has only loopback addresses";
  }
  write("recipe.yaml", recipe_of_docs());
  // In place of ssh: the command in a shell of its own.
  write("ssh.sh", "shift\nexec sh -c \"$*\"\n");
  auto loop = replaced(
      script_in_docs("Bare SSH", 0),
      "hosts=(node1 node2)",
      "hosts=(" + address + " " + address + ")");
  loop = replaced(loop, ":29500", ":" + std::to_string(free_port()));
  write("loop.sh", loop);
  auto variables = path_with_weft();
  variables["SSH"] = "sh ssh.sh";
  Process run({find_program("bash"), "loop.sh"}, folder_, variables);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("on dp=2 tp=4"));
  EXPECT_EQ(metrics().size(), 6);
}

TEST_F(ClustersTest, ABatchScriptsProcessIsOneRankAndSaysSo) {
  Process run(train({"train.steps=1"}), folder_, batch_script());
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("on dp=1 tp=1"));
  const auto lines = lines_of(run.error());
  ASSERT_EQ(lines.size(), 1) << run.error();
  EXPECT_THAT(
      lines[0],
      AllOf(
          HasSubstr("INFO rank=0 this Slurm job has SLURM_NTASKS=2"),
          HasSubstr("one rank, alone")));
}

TEST_F(ClustersTest, HalfOfTorchrunsVariablesIsRefused) {
  auto variables = srun(0);
  variables["WORLD_SIZE"] = "2";
  Process run(train({}), folder_, variables);
  EXPECT_EQ(run.wait(), 2);
  EXPECT_EQ(
      run.last_error_line(),
      "ERROR 2 rank=0 op=train [environment] RANK is not set, but WORLD_SIZE=2 "
      "is. Set both, or unset WORLD_SIZE, because Slurm already gives the "
      "number of ranks.");
  EXPECT_FALSE(fs::exists(folder_ / "outputs"));
}

TEST_F(ClustersTest, ARankOfSrunReportsItsOwnNumber) {
  Process run(train({"model.dmi=64"}), folder_, srun(1));
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 2 rank=1 op=train "));
}

TEST_F(ClustersTest, ARankThatDoesNotComeEndsTheRunInTime) {
  Process run(train({"comm.timeout_s=1", "mesh.tp=2"}), folder_, srun(0));
  EXPECT_EQ(run.wait(), 150);
  EXPECT_THAT(
      run.last_error_line(),
      AllOf(
          StartsWith("ERROR 150 rank=0 op=train [rendezvous] Timed out after "
                     "1 s"),
          HasSubstr("1 of 2 ranks came, without rank 1.")));
}

} // namespace
} // namespace weft::test
