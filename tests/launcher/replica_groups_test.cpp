#include "launcher/replica_groups.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Two groups of two workers that run a shell script.
std::vector<std::string> groups(
    const std::string& script,
    std::vector<std::string> flags = {}) {
  flags.emplace_back("--replica-size=2");
  return shell(4, script, std::move(flags));
}

TEST(ReplicaGroups, AreJobsOfTheirOwn) {
  WeftrunProcess run(groups(
      "echo \"<$REPLICA_GROUP_ID/$NUM_REPLICA_GROUPS $RANK/$WORLD_SIZE "
      "$LOCAL_RANK/$LOCAL_WORLD_SIZE> port $REPLICA_GROUP_ID $MASTER_PORT\""));
  EXPECT_EQ(run.wait(), 0) << run.error();
  std::set<std::string> ports;
  for (const auto& line : lines_of(run.output())) {
    ports.insert(line.substr(line.find("port")));
  }
  EXPECT_EQ(ports.size(), 2); // one for each group
  for (const char* worker :
       {"<0/2 0/2 0/2>", "<0/2 1/2 1/2>", "<1/2 0/2 0/2>", "<1/2 1/2 1/2>"}) {
    EXPECT_EQ(count(run.output(), worker), 1) << worker;
  }
}

TEST(ReplicaGroups, OneThatFailsIsRestartedAlone) {
  const test::TempFolder folder;
  const std::string logs = folder / "logs";
  const std::string again = folder / "again";
  // Group 0 runs until group 1 has started again.
  WeftrunProcess run(groups(
      "echo \"start $REPLICA_GROUP_ID:$RANK:$TORCHELASTIC_RESTART_COUNT\"; "
      "if [ $REPLICA_GROUP_ID = 0 ]; then "
      "  while [ ! -e " +
          again +
          " ]; do sleep 0.05; done; "
          "elif [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then touch " +
          again +
          "; "
          "elif [ $RANK = 1 ]; then kill -9 $$; else exec sleep 100; fi",
      {"--max-restarts=2", "--log-dir", logs, "--redirects=2"}));
  EXPECT_EQ(run.wait(), 0) << run.error();
  for (const char* start : {"0:0:0", "0:1:0", "1:0:0", "1:1:0", "1:0:1"}) {
    EXPECT_EQ(count(run.output(), start), 1) << start;
  }
  EXPECT_THAT(run.output(), Not(HasSubstr("0:0:1")));
  EXPECT_THAT(
      run.error(),
      AllOf(
          HasSubstr("ERROR 137 rank=3 op=launch worker killed by signal 9"),
          HasSubstr("weftrun: replica group 1: restart 1 of 2 in 1 s")));
  const auto root = *std::filesystem::directory_iterator(logs);
  for (const char* there : {"attempt_0/0", "attempt_0/3", "attempt_1/3"}) {
    EXPECT_TRUE(std::filesystem::exists(root.path() / there / "stderr.log"))
        << there;
  }
  EXPECT_FALSE(std::filesystem::exists(root.path() / "attempt_1/0"));
}

TEST(ReplicaGroups, OneThatFailsForGoodEndsTheRun) {
  WeftrunProcess run(groups(
      "echo \"pid $REPLICA_GROUP_ID $$\"; "
      "if [ $REPLICA_GROUP_ID = 1 ]; then exit 1; else exec sleep 100; fi",
      {"--max-restarts=1"}));
  EXPECT_EQ(run.wait(), 1);
  EXPECT_EQ(count(run.output(), "pid 0"), 2);
  EXPECT_EQ(count(run.output(), "pid 1"), 4);
  EXPECT_THAT(
      run.error(),
      HasSubstr("weftrun: replica group 1: 1 restarts did not help"));
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 1 rank="));
  for (const auto& line : lines_of(run.output())) {
    const auto pid = std::stoi(line.substr(line.rfind(' ')));
    EXPECT_TRUE(gone_within(pid, std::chrono::seconds(10))) << line;
  }
}

TEST(ReplicaGroups, ACodeThatIsNotRetriedEndsTheRun) {
  WeftrunProcess run(groups(
      "if [ $REPLICA_GROUP_ID = 0 ]; then exit 5; else exec sleep 100; fi",
      {"--max-restarts=3"}));
  EXPECT_EQ(run.wait(), 5);
  EXPECT_THAT(
      run.error(),
      HasSubstr("weftrun: replica group 0: not restarted: exit code 5"));
}

TEST(ReplicaGroups, OneThatCannotComeBackIsLeftOut) {
  WeftrunProcess run(groups(
      "if [ $REPLICA_GROUP_ID = 0 ]; then "
      "exit $((1 + 4 * $TORCHELASTIC_RESTART_COUNT)); else sleep 3; fi",
      {"--max-restarts=3"}));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(
      run.error(),
      HasSubstr("weftrun: replica group 0: not restarted: exit code 5 is not "
                "retried. The other groups go on"));
}

TEST(ReplicaGroups, ARestartThatCannotStartIsAFailureOfItsGroup) {
  const test::TempFolder folder;
  const auto program = folder / "program";
  std::ofstream(program)
      << "#!/bin/bash\n"
         "if [ $REPLICA_GROUP_ID = 1 ]; then rm $0; exit 1; fi\n"
         "trap 'echo terminated; exit 0' TERM\n"
         "while true; do sleep 0.05; done\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  WeftrunProcess run(
      {"--nproc-per-node=2",
       "--replica-size=1",
       "--max-restarts=1",
       program.string()});
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.output(), HasSubstr("terminated"));
  EXPECT_THAT(
      run.error(),
      HasSubstr("weftrun: replica group 1: 1 restarts did not help"));
}

TEST(ReplicaGroups, ASignalEndsAllOfThem) {
  WeftrunProcess run(groups(
      "trap 'exit 143' TERM; echo ready; while true; do sleep 0.05; done",
      {"--max-restarts=3"}));
  run.wait_for("ready", 4);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "ready"), 4);
  EXPECT_EQ(count(run.error(), "SIGTERM received and forwarded"), 1);
  EXPECT_THAT(
      run.last_error_line(),
      StartsWith("ERROR 143 rank=0 op=launch stopped by signal 15"));
}

TEST(ReplicaGroups, ASignalEndsTheWaitForARestart) {
  WeftrunProcess run(groups("exit 1", {"--max-restarts=3"}));
  run.wait_for("replica group 0: restart 1 of 3");
  run.wait_for("replica group 1: restart 1 of 3");
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.last_error_line(), HasSubstr("no worker running"));
}

TEST(ReplicaGroups, ARequestToSaveAndEndReachesAllAndRestartsNone) {
  WeftrunProcess run(groups(
      "trap 'exit 143' USR1; echo ready; while true; do sleep 0.05; done",
      {"--max-restarts=3"}));
  run.wait_for("ready", 4);
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "ready"), 4);
  EXPECT_THAT(run.error(), Not(HasSubstr("restart 1")));
}

} // namespace
} // namespace weft::launcher
