#include "launcher/options/options.h"

#include <cstdlib>
#include <fstream>

#include <sched.h>
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/options/command_line.h"
#include "launcher/options/worker_count.h"
#include "launcher/process/error.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    setenv(name, value, 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

ParsedCommandLine parse_all(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "weftrun");
  return parse_command_line(
      static_cast<int>(arguments.size()), arguments.data());
}

Options parse(const std::vector<const char*>& arguments) {
  return parse_all(arguments).options.value();
}

std::string error_of(const std::vector<const char*>& arguments) {
  try {
    parse_all(arguments);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Options, DefaultsAreTorchruns) {
  const auto options = parse({"prog"});
  EXPECT_EQ(options.worker_count, 1);
  EXPECT_EQ(options.role, "default");
  EXPECT_EQ(options.run_id, "none");
  EXPECT_EQ(options.hosts.address, "");
  EXPECT_EQ(options.hosts.port, 0);
  EXPECT_EQ(options.shutdown_timeout, milliseconds(30000));
  EXPECT_THAT(options.signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_FALSE(options.redirects.any());
  EXPECT_FALSE(options.tee.any());
  EXPECT_THAT(options.command, ElementsAre("prog"));
}

TEST(Options, FlagsEndAtTheProgram) {
  EXPECT_THAT(
      parse({"--role", "x", "prog", "--role", "y", "--", "-t"}).command,
      ElementsAre("prog", "--role", "y", "--", "-t"));
  EXPECT_THAT(parse({"--", "--odd", "a"}).command, ElementsAre("--odd", "a"));
}

TEST(Options, FlagsAreSpelledAsTorchrunAllows) {
  EXPECT_EQ(parse({"--nproc-per-node", "3", "p"}).worker_count, 3);
  EXPECT_EQ(parse({"--nproc_per_node=3", "p"}).worker_count, 3);
  const auto options = parse(
      {"--nproc_per_node=2",
       "-r3",
       "-t",
       "0:1,1:2",
       "--master_port=1234",
       "--master-addr",
       "localhost",
       "--local_ranks_filter",
       "1",
       "--no_python",
       "--rdzv_backend=c10d",
       "--rdzv-endpoint",
       "host:1",
       "--rdzv_id=7",
       "--monitor-interval",
       "5",
       "--signals-to-handle",
       "SIGUSR1,TERM",
       "--shutdown_timeout",
       "0.5",
       "--max-restarts=0",
       "--nnodes=1",
       "p"});
  EXPECT_TRUE(options.redirects.has(1, StreamSelection::kStderr));
  EXPECT_FALSE(options.tee.has(1, StreamSelection::kStdout));
  EXPECT_EQ(options.hosts.port, 1234);
  EXPECT_EQ(options.hosts.address, "localhost");
  EXPECT_THAT(options.local_ranks_filter, ElementsAre(1));
  EXPECT_EQ(options.run_id, "7");
  EXPECT_THAT(options.signals, ElementsAre(SIGUSR1, SIGTERM));
  EXPECT_EQ(options.shutdown_timeout, milliseconds(500));
}

TEST(Options, TheLastOfARepeatedFlagCounts) {
  EXPECT_EQ(
      parse({"--nproc-per-node=2", "--nproc_per_node", "4", "p"}).worker_count,
      4);
}

TEST(Options, AnEmptyValueLeavesTheDefault) {
  EXPECT_EQ(parse({"--rdzv-id", "", "--role=", "p"}).role, "default");
}

TEST(Options, StaticEndpointIsTheMaster) {
  const auto options = parse({"--rdzv-endpoint", "127.0.0.2:4321", "p"});
  EXPECT_EQ(options.hosts.address, "127.0.0.2");
  EXPECT_EQ(options.hosts.port, 4321);
  EXPECT_THAT(
      error_of({"--rdzv-endpoint", "a:70000", "p"}), HasSubstr("'70000'"));
}

TEST(Options, StandaloneRunsHaveAnIdOfTheirOwn) {
  EXPECT_NE(parse({"--standalone", "p"}).run_id, "none");
}

TEST(Options, VariablesStandInForFlags) {
  const Variable nproc("PET_NPROC_PER_NODE", "5");
  const Variable tee("PET_TEE", "1");
  const Variable standalone("PET_STANDALONE", "1");
  const auto options = parse({"p"});
  EXPECT_EQ(options.worker_count, 5);
  EXPECT_TRUE(options.tee.has(4, StreamSelection::kStdout));
  EXPECT_NE(options.run_id, "none");
  EXPECT_EQ(parse({"--nproc-per-node", "6", "p"}).worker_count, 6);
}

TEST(Options, ShutdownTimeoutAlsoComesFromTorchElastic) {
  const Variable torch("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7");
  EXPECT_EQ(parse({"p"}).shutdown_timeout, milliseconds(7000));
  EXPECT_EQ(
      parse({"--shutdown-timeout=2", "p"}).shutdown_timeout,
      milliseconds(2000));
  const Variable pet("PET_SHUTDOWN_TIMEOUT", "3");
  EXPECT_EQ(parse({"p"}).shutdown_timeout, milliseconds(3000));
}

TEST(Options, WhatOneHostCannotDoIsRefused) {
  EXPECT_THAT(
      error_of({"--nnodes=1:2", "p"}),
      HasSubstr("--nnodes 1:2: the number of hosts cannot change"));
  EXPECT_THAT(error_of({"--nnodes=two", "p"}), HasSubstr("--nnodes two is"));
  EXPECT_THAT(
      error_of({"--nnodes=2", "p"}),
      HasSubstr("requires the address of host 0: give --rdzv-end"));
  EXPECT_THAT(
      error_of({"--node-rank=1", "p"}),
      HasSubstr("with --nnodes 1 it must be 0."));
  EXPECT_THAT(error_of({"--max-restarts=-1", "p"}), HasSubstr("-1"));
  EXPECT_THAT(
      error_of({"--nproc-per-node=4", "--replica-size=3", "p"}),
      HasSubstr("--replica-size 3 does not divide the 4 workers"));
  EXPECT_THAT(
      error_of({"--nnodes=2", "--rdzv-endpoint=h:1", "--replica-size=1", "p"}),
      HasSubstr("--replica-size 1 works on one host, but --nnodes is 2"));
  EXPECT_THAT(
      error_of({"--master-port=29500", "--replica-size=1", "p"}),
      HasSubstr("--master-port 29500 cannot be the port of every replica"));
  EXPECT_THAT(
      error_of({"--rdzv-conf=join_time=3", "p"}),
      HasSubstr("join_time=3 is an unknown setting"));
  EXPECT_THAT(
      error_of({"--rdzv-conf=join_timeout=never", "p"}),
      HasSubstr("join_timeout=never is not a number of seconds"));
}

TEST(Options, BadValuesAreNamed) {
  EXPECT_THAT(error_of({"--nproc-per-node=0", "p"}), HasSubstr("node 0:"));
  EXPECT_THAT(error_of({"--nproc-per-node=two", "p"}), HasSubstr("node two:"));
  EXPECT_THAT(error_of({"--master-port=70000", "p"}), HasSubstr("70000"));
  EXPECT_THAT(error_of({"--master-port=x", "p"}), HasSubstr("--master-port"));
  EXPECT_THAT(error_of({"--rdzv-backend=etcd", "p"}), HasSubstr("etcd"));
  EXPECT_THAT(
      error_of({"--signals-to-handle=SIGNOT", "p"}), HasSubstr("'SIGNOT'"));
  EXPECT_THAT(
      error_of({"--signals-to-handle=KILL", "p"}),
      HasSubstr("KILL cannot be forwarded"));
  EXPECT_THAT(
      error_of({"--local-ranks-filter=1", "p"}),
      HasSubstr("'1' is not a local rank from 0 to 0"));
  EXPECT_THAT(error_of({"--tee=3:1", "p"}), HasSubstr("local rank 3"));
  EXPECT_THAT(error_of({"--shutdown-timeout=-1", "p"}), HasSubstr("-1"));
  EXPECT_THAT(error_of({"--role"}), StartsWith("--role needs a value"));
  EXPECT_THAT(error_of({"--role", "x"}), StartsWith("no program to start"));
}

TEST(Options, FiltersNeedAFolderAndAStream) {
  const auto options = parse(
      {"--duplicate_stdout_filters=loss,a,,b",
       "--tee=0:1",
       "--log-dir=logs",
       "p"});
  EXPECT_TRUE(options.stdout_filter.any());
  EXPECT_FALSE(options.stderr_filter.any());
  EXPECT_THAT(
      error_of({"--duplicate-stdout-filters=loss", "--tee=1", "p"}),
      HasSubstr("Set --log-dir"));
  EXPECT_THAT(
      error_of(
          {"--duplicate-stderr-filters=loss",
           "--tee=1",
           "--redirects=3",
           "--log-dir=logs",
           "p"}),
      HasSubstr("but --tee selects no worker's stderr. Add --tee 2"));
  const Variable filters("PET_DUPLICATE_STDERR_FILTERS", "warning");
  EXPECT_TRUE(parse({"--tee=3", "--log-dir=logs", "p"}).stderr_filter.any());
}

TEST(Options, AVirtualLocalRankNeedsADeviceForEachWorker) {
  const std::vector<const char*> two{
      "--virtual-local-rank", "--nproc-per-node=2", "p"};
  EXPECT_TRUE(parse(two).virtual_local_rank);
  const Variable one("CUDA_VISIBLE_DEVICES", "3");
  EXPECT_THAT(
      error_of(two),
      HasSubstr("CUDA_VISIBLE_DEVICES=3 lists 1 device(s) for 2 workers"));
  const Variable none("CUDA_VISIBLE_DEVICES", "");
  EXPECT_EQ(error_of(two), "no error");
}

TEST(Options, AnUnknownFlagGetsTheNearestValidOne) {
  const auto nearest = [](const char* flag) {
    const std::string message = error_of({flag, "p"});
    const size_t begin = message.find("Did you mean ");
    const size_t end = message.find('?');
    return begin > end ? message : message.substr(begin + 13, end - begin - 13);
  };
  EXPECT_EQ(nearest("--nproc"), "--nproc-per-node");
  EXPECT_EQ(nearest("--nproc-per-nod=2"), "--nproc-per-node");
  EXPECT_EQ(nearest("--nproc_per_gpu"), "--nproc-per-node");
  EXPECT_EQ(nearest("-n"), "--nproc-per-node");
  EXPECT_EQ(nearest("--mster-port"), "--master-port");
  EXPECT_EQ(nearest("--logdir"), "--log-dir");
  EXPECT_EQ(nearest("--redirect"), "--redirects");
  EXPECT_THAT(
      error_of({"--mster-port=1", "p"}),
      StartsWith("unknown flag --mster-port."));
  EXPECT_THAT(error_of({"-m", "p"}), StartsWith("-m does not apply"));
  EXPECT_THAT(
      error_of({"--start_method=fork", "p"}),
      StartsWith("--start-method does not apply"));
}

TEST(Options, HelpAndVersionAreTexts) {
  EXPECT_EQ(parse_all({"--version"}).text, "weftrun 0.1.0\n");
  const auto help = parse_all({"--help", "p"});
  EXPECT_FALSE(help.options);
  for (const char* flag :
       {"Usage: weftrun [flags] [--] program",
        "--nproc-per-node",
        "--shutdown-timeout",
        "-t,--tee",
        "WEFT_MASTER_FD"}) {
    EXPECT_THAT(help.text, HasSubstr(flag));
  }
  EXPECT_EQ(parse_all({"-h"}).text, help.text);
}

TEST(WorkerCount, CountsCoresAndDevices) {
  cpu_set_t cpus;
  ASSERT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  EXPECT_EQ(worker_count("cpu"), CPU_COUNT(&cpus));
  const Variable none("CUDA_VISIBLE_DEVICES", "");
  EXPECT_EQ(worker_count("auto"), CPU_COUNT(&cpus));
  EXPECT_THROW(worker_count("gpu"), LaunchError);
  const Variable two("CUDA_VISIBLE_DEVICES", "3,5");
  EXPECT_EQ(worker_count("gpu"), 2);
  EXPECT_EQ(worker_count("auto"), 2);
}

TEST(WorkerCount, OnlyNumberedDeviceFilesAreGpus) {
  const test::TempFolder folder;
  for (const char* name :
       {"nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"}) {
    std::ofstream(folder / name);
  }
  EXPECT_EQ(count_gpus(folder.path(), nullptr), 2);
  EXPECT_EQ(count_gpus(folder.path(), "0"), 1);
  EXPECT_EQ(count_gpus(folder.path(), "-1"), 0);
  EXPECT_EQ(count_gpus(folder / "absent", nullptr), 0);
}

} // namespace
} // namespace weft::launcher
