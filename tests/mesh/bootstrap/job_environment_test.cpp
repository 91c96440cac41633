#include "mesh/bootstrap/job_environment.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

VariableLookup lookup(const Variables& variables) {
  return [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() || found->second.empty()
               ? std::nullopt
               : std::optional(found->second);
  };
}

/// `variables` with `changes`; an empty value removes one.
Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    variables[name] = value;
  }
  return variables;
}

JobEnvironment read(const Variables& variables) {
  return read_job_environment(lookup(variables));
}

std::string refused(const Variables& variables) {
  return message_of_thrown<UsageError>([&] { read(variables); });
}

/// "source rank/size local_rank/local_size".
std::string place(const JobRank& job) {
  return detail::concat(
      to_string(job.source),
      " ",
      job.rank,
      "/",
      job.world_size,
      " ",
      job.local_rank,
      "/",
      job.local_world_size);
}

std::string store(const JobEnvironment& job) {
  return detail::concat(job.master_address, ":", job.master_port);
}

const Variables kTorchrun{
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"},
    {"MASTER_ADDR", "node0"},
    {"MASTER_PORT", "29501"},
    {"TORCHELASTIC_RUN_ID", "none"}};

/// Task 1 of `srun -n 3` on one host, Slurm 22.05.
const Variables kSrun{
    {"SLURM_JOB_ID", "2"},
    {"SLURM_JOB_NODELIST", "vm"},
    {"SLURM_JOB_NUM_NODES", "1"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "0"},
    {"SLURM_NPROCS", "3"},
    {"SLURM_NTASKS", "3"},
    {"SLURM_PROCID", "1"},
    {"SLURM_STEPID", "0"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEP_NODELIST", "vm"},
    {"SLURM_STEP_NUM_NODES", "1"},
    {"SLURM_STEP_NUM_TASKS", "3"},
    {"SLURM_STEP_TASKS_PER_NODE", "3"},
    {"SLURM_TASKS_PER_NODE", "3"}};

/// Task 9 of 11, the second on the third of three hosts; the job has more.
const Variables kSrunHosts = with(
    kSrun,
    {{"SLURM_JOB_ID", "123456"},
     {"SLURM_STEP_ID", "7"},
     {"SLURM_JOB_NODELIST", "gpu[001-008]"},
     {"SLURM_STEP_NODELIST", "gpu[003-005]"},
     {"SLURM_STEP_NUM_TASKS", "11"},
     {"SLURM_NTASKS", "11"},
     {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
     {"SLURM_TASKS_PER_NODE", "4(x2),3"},
     {"SLURM_PROCID", "9"},
     {"SLURM_NODEID", "2"},
     {"SLURM_LOCALID", "1"}});

/// The script of `sbatch -n 4`, Slurm 22.05.
const Variables kBatchScript{
    {"SLURM_JOB_ID", "3"},
    {"SLURM_JOB_NODELIST", "vm"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "0"},
    {"SLURM_NPROCS", "4"},
    {"SLURM_NTASKS", "4"},
    {"SLURM_PROCID", "0"},
    {"SLURM_TASKS_PER_NODE", "4"}};

/// The shell of `salloc -n 4` where salloc stays on the login host.
const Variables kSallocShell{
    {"SLURM_JOB_ID", "4"},
    {"SLURM_JOB_NODELIST", "vm"},
    {"SLURM_NPROCS", "4"},
    {"SLURM_NTASKS", "4"},
    {"SLURM_TASKS_PER_NODE", "4"}};

/// Like above, with LaunchParameters=use_interactive_step, Slurm 22.05.
const Variables kInteractiveStep = with(
    kBatchScript,
    {{"SLURM_STEP_ID", "4294967290"},
     {"SLURM_STEP_NODELIST", "vm"},
     {"SLURM_STEP_NUM_TASKS", "1"},
     {"SLURM_STEP_TASKS_PER_NODE", "1"},
     {"SLURM_PTY_PORT", "39263"}});

/// Rank 1 of `mpirun -n 2` on one host, Open MPI 4.1.
const Variables kMpirun{
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_MCA_ess_base_jobid", "1324482561"},
    {"OMPI_UNIVERSE_SIZE", "2"},
    {"PMIX_NAMESPACE", "1324482561"},
    {"PMIX_RANK", "1"}};

/// Rank 1 of `mpiexec -n 2` on one host, MPICH 4.0.
const Variables kMpiexec{
    {"MPI_LOCALNRANKS", "2"},
    {"MPI_LOCALRANKID", "1"},
    {"PMI_FD", "8"},
    {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"}};

/// What Hydra's proxy, itself a task of srun, hands on in a Slurm job of 4
/// tasks: the same to every rank. Slurm 22.05, MPICH 4.0.
const Variables kProxysStep = with(
    kBatchScript,
    {{"SLURM_STEP_ID", "0"},
     {"SLURM_STEP_NODELIST", "vm"},
     {"SLURM_STEP_NUM_TASKS", "1"},
     {"SLURM_STEP_TASKS_PER_NODE", "1"},
     {"SLURM_TASKS_PER_NODE", "1"}});

TEST(JobEnvironment, WithoutALauncherThereIsOneRank) {
  for (const Variables& variables :
       {Variables{}, Variables{{"MASTER_ADDR", "x"}, {"LOCAL_RANK", "3"}}}) {
    const auto job = read(variables);
    EXPECT_EQ(place(job), "nobody 0/1 0/1");
    EXPECT_EQ(store(job), ":0");
    EXPECT_EQ(job.note, "");
  }
}

TEST(JobEnvironment, TorchrunSaysEverything) {
  const auto job = read(kTorchrun);
  EXPECT_EQ(place(job), "torchrun 5/8 1/4");
  EXPECT_EQ(store(job), "node0:29501");
  EXPECT_EQ(job.port_origin, "");
  EXPECT_EQ(job.job_key, "");
  EXPECT_EQ(job.host_ranks, 4);
}

TEST(JobEnvironment, RanksOfOtherReplicaGroupsShareTheHost) {
  EXPECT_EQ(read(with(kTorchrun, {{"WEFT_HOST_RANKS", "16"}})).host_ranks, 16);
}

TEST(JobEnvironment, ItsLocalVariablesMayBeLeftOut) {
  const Variables none{{"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}};
  auto variables = with(kTorchrun, none);
  EXPECT_EQ(place(read(variables)), "torchrun 5/8 0/1");
  variables["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(place(read(variables)), "torchrun 5/8 5/8");
}

TEST(JobEnvironment, OneRankNeedsNoPlaceToMeet) {
  const Variables one{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_EQ(place(read(one)), "torchrun 0/1 0/1");
  EXPECT_EQ(store(read(one)), ":0");
  // The way to start independent runs as tasks of srun.
  EXPECT_EQ(place(read(with(kSrun, one))), "torchrun 0/1 0/1");
}

TEST(JobEnvironment, SlurmOnOneHostMeetsOnLoopback) {
  const auto job = read(kSrun);
  EXPECT_EQ(place(job), "Slurm 1/3 1/3");
  EXPECT_EQ(store(job), "127.0.0.1:20202");
  EXPECT_EQ(job.port_origin, "SLURM_JOB_ID=2 and SLURM_STEP_ID=0");
  EXPECT_EQ(job.job_key, job.port_origin);
  EXPECT_EQ(job.note, "");
}

TEST(JobEnvironment, SlurmOnSeveralHostsMeetsOnTheStepsFirst) {
  const auto job = read(kSrunHosts);
  EXPECT_EQ(place(job), "Slurm 9/11 1/3");
  // 123456 * 101 + 7 = 12469063
  EXPECT_EQ(store(job), "gpu003:29063");
  EXPECT_EQ(
      read(with(kSrunHosts, {{"SLURM_STEP_NODELIST", ""}})).master_address,
      "gpu001");
}

TEST(JobEnvironment, MasterAddressAndPortAreTakenAsGiven) {
  const auto job = read(
      with(kSrunHosts, {{"MASTER_ADDR", "10.0.0.3"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(place(job), "Slurm 9/11 1/3");
  EXPECT_EQ(store(job), "10.0.0.3:1234");
  EXPECT_EQ(job.port_origin, "");
  EXPECT_EQ(job.job_key, "SLURM_JOB_ID=123456 and SLURM_STEP_ID=7");
}

TEST(JobEnvironment, SlurmsStepCountsNotItsJob) {
  // `srun -n 2` in a job of 8 tasks.
  const auto job = read(with(
      kSrun,
      {{"SLURM_NTASKS", "8"},
       {"SLURM_TASKS_PER_NODE", "8"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_STEP_TASKS_PER_NODE", "2"}}));
  EXPECT_EQ(place(job), "Slurm 1/2 1/2");
}

TEST(JobEnvironment, OneProcessOfALargerSlurmJobIsAloneAndToldSo) {
  for (const auto& variables : {kBatchScript, kSallocShell, kInteractiveStep}) {
    const auto job = read(variables);
    EXPECT_EQ(place(job), "nobody 0/1 0/1");
    EXPECT_THAT(
        job.note,
        AllOf(HasSubstr("SLURM_NTASKS=4"), HasSubstr("Start it with srun")));
  }
  EXPECT_EQ(read(with(kBatchScript, {{"SLURM_NTASKS", "1"}})).note, "");
  EXPECT_EQ(read(with(kBatchScript, {{"SLURM_NTASKS", ""}})).note, "");
}

TEST(JobEnvironment, SrunInAnInteractiveShellIsAStep) {
  // It sets all of its variables and leaves SLURM_PTY_PORT.
  const auto job = read(with(kInteractiveStep, kSrun));
  EXPECT_EQ(place(job), "Slurm 1/3 1/3");
}

TEST(JobEnvironment, OpenMpiOnOneHostMeetsOnLoopback) {
  const auto job = read(kMpirun);
  EXPECT_EQ(place(job), "Open MPI 1/2 1/2");
  EXPECT_EQ(job.master_address, "127.0.0.1");
  EXPECT_EQ(job.port_origin, "PMIX_NAMESPACE=1324482561");
  const auto old = read(with(kMpirun, {{"PMIX_NAMESPACE", ""}}));
  EXPECT_EQ(old.port_origin, "OMPI_MCA_ess_base_jobid=1324482561");
}

TEST(JobEnvironment, HydraOnOneHostMeetsOnLoopback) {
  const auto job = read(kMpiexec);
  EXPECT_EQ(place(job), "Hydra 1/2 1/2");
  EXPECT_EQ(job.master_address, "127.0.0.1");
  EXPECT_EQ(job.port_origin, "Hydra's world of 2");
  const auto in_a_job = read(with(kMpiexec, {{"PBS_JOBID", "17.head"}}));
  EXPECT_EQ(in_a_job.port_origin, "PBS_JOBID=17.head");
}

TEST(JobEnvironment, MpirunAndMpiexecInASlurmJobAreNotSteps) {
  EXPECT_EQ(place(read(with(kBatchScript, kMpirun))), "Open MPI 1/2 1/2");
  EXPECT_EQ(place(read(with(kProxysStep, kMpirun))), "Open MPI 1/2 1/2");
  const auto job = read(with(kProxysStep, kMpiexec));
  EXPECT_EQ(place(job), "Hydra 1/2 1/2");
  EXPECT_EQ(job.port_origin, "SLURM_JOB_ID=3");
}

TEST(JobEnvironment, SrunsOwnPmiIsSlurm) {
  const Variables pmi2{
      {"PMI_JOBID", "2.0"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "3"}};
  EXPECT_EQ(place(read(with(kSrun, pmi2))), "Slurm 1/3 1/3");
  const Variables pmix{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.2.0"}};
  EXPECT_EQ(place(read(with(kSrun, pmix))), "Slurm 1/3 1/3");
}

TEST(JobEnvironment, PmiWithItsOwnLocalRanks) {
  // Cray's PALS.
  const Variables pals{
      {"PMI_RANK", "5"},
      {"PMI_SIZE", "8"},
      {"PMI_LOCAL_RANK", "1"},
      {"PMI_LOCAL_SIZE", "4"},
      {"PBS_JOBID", "17.head"},
      {"MASTER_ADDR", "x1"}};
  const auto job = read(pals);
  EXPECT_EQ(place(job), "PMI 5/8 1/4");
  EXPECT_EQ(job.master_address, "x1");
  EXPECT_EQ(job.port_origin, "PBS_JOBID=17.head");
}

TEST(JobEnvironment, PmixTakesTheSizeFromWorldSize) {
  const Variables prterun{
      {"PMIX_RANK", "2"},
      {"PMIX_NAMESPACE", "prterun-vm-17@1"},
      {"WORLD_SIZE", "4"},
      {"MASTER_ADDR", "127.0.0.1"}};
  const auto job = read(prterun);
  EXPECT_EQ(place(job), "PMIx 2/4 2/4");
  EXPECT_EQ(job.port_origin, "PMIX_NAMESPACE=prterun-vm-17@1");
  EXPECT_THAT(
      refused(with(prterun, {{"WORLD_SIZE", ""}})),
      HasSubstr("PMIX_RANK=2 is set, but the number of ranks is not"));
  EXPECT_THAT(
      refused(with(prterun, {{"MASTER_ADDR", ""}})),
      HasSubstr("MASTER_ADDR is not set"));
}

TEST(JobEnvironment, TorchrunsVariablesWin) {
  auto variables = with(with(kSrunHosts, kMpirun), kMpiexec);
  EXPECT_EQ(place(read(with(variables, kTorchrun))), "torchrun 5/8 1/4");
}

TEST(JobEnvironment, PortsLieInTheirRangeAndJobsOfATimeDiffer) {
  std::set<uint16_t> ports;
  for (const int64_t first_job : {1L, 123456L, 4294967200L}) {
    ports.clear();
    for (int64_t job = first_job; job < first_job + 50; ++job) {
      for (int64_t step = 0; step < 100; ++step) {
        const auto port = read(with(
                                   kSrun,
                                   {{"SLURM_JOB_ID", std::to_string(job)},
                                    {"SLURM_STEP_ID", std::to_string(step)}}))
                              .master_port;
        EXPECT_TRUE(port >= 20000 && port < 30000) << port;
        EXPECT_TRUE(ports.insert(port).second) << job << "." << step;
      }
    }
  }
  ports.clear();
  for (int64_t id = 0; id < 1000; ++id) {
    const auto port =
        read(with(kMpirun, {{"PMIX_NAMESPACE", std::to_string(id)}}))
            .master_port;
    EXPECT_TRUE(port >= 20000 && port < 30000) << port;
    ports.insert(port);
  }
  EXPECT_GT(ports.size(), 900);
}

TEST(JobEnvironment, HalfOfTwoVariablesIsRefused) {
  EXPECT_THAT(
      refused({{"RANK", "1"}}), HasSubstr("WORLD_SIZE is not set, but RANK=1"));
  EXPECT_THAT(
      refused({{"WORLD_SIZE", "4"}}),
      HasSubstr("RANK is not set, but WORLD_SIZE=4 is"));
  EXPECT_THAT(
      refused(with(kSrun, {{"WORLD_SIZE", "3"}})),
      AllOf(
          HasSubstr("RANK is not set, but WORLD_SIZE=3 is"),
          HasSubstr("unset WORLD_SIZE, because Slurm already")));
  EXPECT_THAT(
      refused(with(kMpirun, {{"WORLD_SIZE", "2"}})),
      HasSubstr("unset WORLD_SIZE, because Open MPI already"));
  for (const auto& [missing, set] : std::map<std::string, std::string>{
           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE=2"},
           {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK=1"},
           {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
           {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK=1"}}) {
    EXPECT_THAT(
        refused(with(kMpirun, {{missing, ""}})),
        HasSubstr(missing + " is not set, but " + set + " is"));
  }
  EXPECT_THAT(
      refused(with(kMpiexec, {{"PMI_SIZE", ""}})),
      HasSubstr("PMI_SIZE is not set, but PMI_RANK=1 is"));
  EXPECT_THAT(
      refused(with(kMpiexec, {{"MPI_LOCALNRANKS", ""}})),
      HasSubstr("MPI_LOCALNRANKS is not set, but MPI_LOCALRANKID=1 is"));
  for (const char* missing :
       {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"}) {
    EXPECT_THAT(
        refused(with(kSrun, {{missing, ""}})),
        AllOf(
            HasSubstr(std::string(missing) + " is not set"),
            HasSubstr("SLURM_STEP_ID=0 is")));
  }
}

TEST(JobEnvironment, WrongNumbersAreNamed) {
  const auto expect = [](const Variables& base,
                         const Variables& change,
                         const std::string& range) {
    const auto& [name, value] = *change.begin();
    EXPECT_THAT(
        refused(with(base, change)),
        HasSubstr(
            name + "=" + value + " is not an integer from " + range + "."));
  };
  expect(kTorchrun, {{"RANK", "8"}}, "0 to 7");
  expect(kTorchrun, {{"WORLD_SIZE", "0"}}, "1 to 2147483647");
  expect(kTorchrun, {{"LOCAL_RANK", "4"}}, "0 to 3");
  expect(kTorchrun, {{"MASTER_PORT", "65536"}}, "1 to 65535");
  expect(kTorchrun, {{"WEFT_HOST_RANKS", "0"}}, "1 to 2147483647");
  expect(kSrun, {{"SLURM_PROCID", "3"}}, "0 to 2");
  expect(kSrun, {{"SLURM_LOCALID", "3"}}, "0 to 2");
  expect(kSrun, {{"SLURM_NODEID", "1"}}, "0 to 0");
  expect(kSrun, {{"SLURM_STEP_ID", "0.0"}}, "0 to 4294967295");
  expect(kSrun, {{"SLURM_JOB_ID", "1e9"}}, "0 to 4294967295");
  expect(kSrun, {{"MASTER_PORT", "auto"}}, "1 to 65535");
  expect(kMpirun, {{"OMPI_COMM_WORLD_RANK", "2"}}, "0 to 1");
  expect(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}, "1 to 2");
  expect(kMpiexec, {{"PMI_RANK", "-1"}}, "0 to 1");
  expect(kMpiexec, {{"MPI_LOCALRANKID", "2"}}, "0 to 1");
}

TEST(JobEnvironment, SlurmsListsHaveToFit) {
  EXPECT_THAT(
      refused(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2"}})),
      HasSubstr("SLURM_STEP_TASKS_PER_NODE=2 has 2 tasks, but "
                "SLURM_STEP_NUM_TASKS=3"));
  EXPECT_THAT(
      refused(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "3("}})),
      HasSubstr("SLURM_STEP_TASKS_PER_NODE=3( cannot be read"));
  EXPECT_THAT(
      refused(with(kSrunHosts, {{"SLURM_STEP_NODELIST", "gpu[003-"}})),
      HasSubstr("SLURM_STEP_NODELIST=gpu[003- cannot be read"));
}

TEST(JobEnvironment, AnUnknownPlaceToMeetSaysWhatToSet) {
  const Variables no_address{{"MASTER_ADDR", ""}};
  EXPECT_THAT(
      refused(with(kTorchrun, no_address)),
      AllOf(
          HasSubstr("MASTER_ADDR is not set"),
          HasSubstr("(rank 5/8, 4 on this host, by torchrun)")));
  EXPECT_THAT(
      refused(with(kTorchrun, {{"MASTER_PORT", ""}})),
      HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(
      refused(with(
          kMpirun,
          {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}})),
      AllOf(
          HasSubstr("MASTER_ADDR is not set"),
          HasSubstr("mpirun -x MASTER_ADDR=node1"),
          HasSubstr("(rank 3/4, 2 on this host, by Open MPI)")));
  EXPECT_THAT(
      refused(with(kMpiexec, {{"PMI_SIZE", "4"}})),
      HasSubstr("mpiexec -genv MASTER_ADDR node1"));
  EXPECT_THAT(
      refused({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}),
      HasSubstr("PMI_RANK=1 comes without PMI_LOCAL_RANK and PMI_LOCAL_SIZE"));
  EXPECT_THAT(
      refused(with(
          kSrunHosts,
          {{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}})),
      AllOf(
          HasSubstr("SLURM_STEP_NODELIST unset"),
          HasSubstr("Set MASTER_ADDR")));
}

TEST(JobEnvironment, RankZeroOnAnotherHostThanTheFirstIsNoticed) {
  const auto first = with(
      kSrunHosts,
      {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(read(first).master_address, "gpu003");
  const auto second = with(first, {{"SLURM_NODEID", "1"}});
  EXPECT_THAT(
      refused(second),
      AllOf(
          HasSubstr("SLURM_STEP_NODELIST=gpu[003-005] with SLURM_NODEID=1"),
          HasSubstr("Set MASTER_ADDR")));
  EXPECT_EQ(
      read(with(second, {{"MASTER_ADDR", "gpu004"}})).master_address, "gpu004");
}

TEST(JobEnvironment, LoopbackForSeveralHostsIsRefused) {
  EXPECT_THAT(
      refused(with(kSrunHosts, {{"MASTER_ADDR", "localhost"}})),
      AllOf(
          HasSubstr("MASTER_ADDR=localhost is a loopback address"),
          HasSubstr("Slurm started only 3 of 11 ranks on this host")));
  // Two agents of torchrun may share a host.
  EXPECT_EQ(
      place(read(with(kTorchrun, {{"MASTER_ADDR", "localhost"}}))),
      "torchrun 5/8 1/4");
}

} // namespace
} // namespace weft::mesh
