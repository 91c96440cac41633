// How launches end before their time, with the real program.
#include <fstream>

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// The numbers that workers have printed as `pid <number>`.
std::vector<pid_t> printed_pids(const std::string& output) {
  std::vector<pid_t> pids;
  for (const auto& line : lines_of(output)) {
    if (line.starts_with("pid ")) {
      pids.push_back(std::stoi(line.substr(4)));
    }
  }
  return pids;
}

void expect_all_gone(const std::string& output, size_t count) {
  const auto pids = printed_pids(output);
  EXPECT_EQ(pids.size(), count);
  for (const pid_t pid : pids) {
    EXPECT_TRUE(gone_within(pid, seconds(1))) << pid;
  }
}

TEST(ShutdownTest, AForwardedSignalReachesEachWorkersGroup) {
  WeftrunProcess run(shell(
      3, "trap 'echo saved; exit 143' TERM; sleep 100 & echo ready; wait"));
  run.wait_for("ready", 3);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "saved"), 3);
  EXPECT_THAT(run.error(), HasSubstr("SIGTERM received and forwarded"));
  EXPECT_EQ(
      run.last_error_line(),
      "ERROR 143 rank=0 op=launch stopped by signal 15 (SIGTERM)");
}

TEST(ShutdownTest, WorkersThatDieByTheSignalGive128PlusIt) {
  WeftrunProcess run(shell(2, "echo ready; exec sleep 100"));
  run.wait_for("ready", 2);
  run.send(SIGINT);
  EXPECT_EQ(run.wait(), 130);
}

TEST(ShutdownTest, WorkersThatFinishAllTheSameGiveZero) {
  WeftrunProcess run(
      shell(2, "trap 'exit 0' HUP; echo ready; sleep 100 & wait"));
  run.wait_for("ready", 2);
  run.send(SIGHUP);
  EXPECT_EQ(run.wait(), 0);
}

TEST(ShutdownTest, AMixOfCodesAfterASignalGives128PlusIt) {
  WeftrunProcess run(shell(
      2, "trap \"exit $((RANK * 5))\" TERM; echo ready; sleep 100 & wait"));
  run.wait_for("ready", 2);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.error(), HasSubstr("exit code 5"));
}

TEST(ShutdownTest, TheSecondSignalDoesNotReachTheWorkers) {
  const test::TempFolder folder;
  const std::string go = folder / "go";
  WeftrunProcess run(shell(
      1,
      "trap 'echo term' TERM; echo ready; while [ ! -e '" + go +
          "' ]; do sleep 0.02; done; exit 143"));
  run.wait_for("ready");
  run.send(SIGTERM);
  run.wait_for("term");
  run.send(SIGTERM);
  run.wait_for("already ending");
  std::ofstream(go).close();
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "term"), 1);
}

TEST(ShutdownTest, AWorkerThatIgnoresTheSignalIsKilledInTheEnd) {
  WeftrunProcess run(shell(
      2,
      "if [ $RANK = 1 ]; then trap '' TERM; fi; echo pid $$; sleep 100; "
      "sleep 100",
      {"--shutdown-timeout", "0.2"}));
  run.wait_for("pid ", 2);
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.error(), HasSubstr("signal 9 (SIGKILL)"));
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr("workers did not exit in time and were killed"));
  expect_all_gone(run.output(), 2);
}

TEST(ShutdownTest, QuitDuringTheWaitKillsAtOnce) {
  WeftrunProcess run(shell(
      1,
      "trap '' TERM QUIT; echo pid $$; sleep 100; sleep 100",
      {"--shutdown-timeout", "1000"}));
  run.wait_for("pid ");
  run.send(SIGTERM);
  run.wait_for("forwarded");
  run.send(SIGQUIT);
  EXPECT_EQ(run.wait(), 137);
  expect_all_gone(run.output(), 1);
}

TEST(ShutdownTest, AnIgnoredHangupStaysIgnored) {
  const std::string weftrun = WEFT_WEFTRUN;
  WeftrunProcess run(shell(
      1,
      "trap '' HUP; '" + weftrun +
          "' -- /bin/sh -c 'kill -HUP $PPID; kill -HUP $$; echo alive'"));
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(run.output(), "alive\n");
}

TEST(ShutdownTest, AFailureEndsPeersThatIgnoreItAndWhatTheyStarted) {
  WeftrunProcess run(shell(
      3,
      "if [ $RANK = 0 ]; then cat; exit 9; fi; trap '' TERM; "
      "sleep 100 & echo pid $!; echo pid $$; wait",
      {"--shutdown-timeout", "0.2"}));
  run.wait_for("pid ", 4);
  run.close_input();
  EXPECT_EQ(run.wait(), 9);
  expect_all_gone(run.output(), 4);
  EXPECT_THAT(run.error(), HasSubstr("then ended by weftrun, some by SIGKILL"));
}

TEST(ShutdownTest, WhatTheFailedWorkerStartedDiesToo) {
  WeftrunProcess run(shell(2, "sleep 100 & echo pid $!; cat; exit 6"));
  run.wait_for("pid ", 2);
  run.close_input();
  EXPECT_EQ(run.wait(), 6);
  expect_all_gone(run.output(), 2);
}

TEST(ShutdownTest, AStoppedWorkerIsEndedToo) {
  WeftrunProcess run(shell(
      2, "if [ $RANK = 0 ]; then cat; exit 9; fi; echo pid $$; kill -STOP $$"));
  run.wait_for("pid ");
  run.close_input();
  EXPECT_EQ(run.wait(), 9);
  expect_all_gone(run.output(), 1);
}

TEST(ShutdownTest, AKilledLauncherLeavesNothingBehind) {
  const test::TempFolder folder;
  WeftrunProcess run(
      shell(
          3,
          "trap '' TERM; sleep 100 & echo pid $!; echo pid $$; echo pid "
          "$PPID; wait"),
      {{"TMPDIR", folder.path()}});
  run.wait_for("pid ", 9);
  EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  run.send(SIGKILL);
  EXPECT_EQ(run.wait(), 137);
  expect_all_gone(run.output(), 9);
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  while (!std::filesystem::is_empty(folder.path()) &&
         std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ShutdownTest, AStalledReaderDoesNotKeepWorkersAlive) {
  const test::TempFolder folder;
  const std::string pid_file = folder / "pid";
  WeftrunProcess run(shell(
      2,
      "if [ $RANK = 0 ]; then echo pid $$ > '" + pid_file +
          "'; echo started; exec head -c 30000000 /dev/zero >&2; fi; "
          "while [ ! -s '" +
          pid_file + "' ]; do sleep 0.02; done; exit 5",
      {"--shutdown-timeout", "0.2"}));
  run.wait_for("started");
  // Nobody reads standard error now.
  const auto pids = printed_pids(read_file(pid_file));
  ASSERT_EQ(pids.size(), 1);
  EXPECT_TRUE(gone_within(pids[0], seconds(10)));
  EXPECT_EQ(run.wait(), 5);
  EXPECT_THAT(run.last_error_line(), HasSubstr("ERROR 5 rank=1"));
}

TEST(ShutdownTest, AnInterruptedLauncherGoesOn) {
  WeftrunProcess run(shell(1, "echo ready; cat; exit 3"));
  run.wait_for("ready");
  for (int i = 0; i < 20; ++i) {
    run.send(SIGSTOP);
    run.send(SIGCONT);
    run.send(SIGWINCH);
  }
  run.close_input();
  EXPECT_EQ(run.wait(), 3);
}

} // namespace
} // namespace weft::launcher
