// SIGUSR1 and SIGUSR2, which workers get and which end nothing by themselves.
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/rendezvous/several_hosts.h"

namespace weft::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kRest = "echo ready; while :; do sleep 0.05; done";

TEST(ForwardedSignals, ReachAllWorkersAndKeepTheRun) {
  WeftrunProcess run(shell(
      2,
      "trap 'echo usr1 of $RANK' USR1; trap 'echo usr2 of $RANK; exit 0' "
      "USR2; " +
          kRest));
  run.wait_for("ready", 2);
  run.send(SIGUSR1);
  run.wait_for("usr1 of", 2);
  run.send(SIGUSR1);
  run.wait_for("usr1 of", 4);
  run.send(SIGUSR2);
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("usr2 of 0"));
  EXPECT_THAT(run.output(), HasSubstr("usr2 of 1"));
  EXPECT_THAT(
      run.error(),
      HasSubstr("weftrun: SIGUSR1 received and passed on to the workers\n"));
}

TEST(ForwardedSignals, AWorkerThatDoesNotExpectItDiesOfItAndIsNamed) {
  WeftrunProcess run(shell(1, "echo ready; exec sleep 100"));
  run.wait_for("ready");
  run.send(SIGUSR2);
  EXPECT_EQ(run.wait(), 140);
  EXPECT_THAT(run.last_error_line(), HasSubstr("signal 12 (SIGUSR2)"));
}

TEST(ForwardedSignals, WhoTakesItAsARequestToEndHasTimeAndIsNotRestarted) {
  WeftrunProcess run(shell(
      2,
      "trap 'echo terminated' TERM; trap 'sleep $RANK; exit 143' USR1; " +
          kRest,
      {"--max-restarts=3"}));
  run.wait_for("ready", 2);
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "ready"), 2);
  EXPECT_THAT(run.output(), Not(HasSubstr("terminated")));
  EXPECT_THAT(run.error(), Not(HasSubstr("failed")));
  EXPECT_THAT(
      run.last_error_line(),
      StartsWith("ERROR 143 rank=0 op=launch stopped by signal 10 (SIGUSR1)"));
}

// As weft train in its first moments.
TEST(ForwardedSignals, WhoHasNoHandlerYetEndsTheRunAllTheSame) {
  WeftrunProcess run(
      shell(2, "echo ready; exec sleep 100", {"--max-restarts=3"}));
  run.wait_for("ready", 2);
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "ready"), 2);
  EXPECT_THAT(run.error(), Not(HasSubstr("restart 1")));
  EXPECT_THAT(
      run.last_error_line(),
      StartsWith("ERROR 143 rank=0 op=launch stopped by signal 10 (SIGUSR1)"));
}

TEST(ForwardedSignals, SetTheExitCode) {
  WeftrunProcess run(shell(
      2, "trap 'sleep $RANK; exit $((143 - 143 * RANK))' USR1; " + kRest));
  run.wait_for("ready", 2);
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait(), 143);
}

TEST(ForwardedSignals, AnotherFailureAfterItIsAFailure) {
  WeftrunProcess run(shell(2, "trap '[ $RANK = 0 ] || exit 3' USR1; " + kRest));
  run.wait_for("ready", 2);
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 3 rank=1 "));
}

TEST(ForwardedSignals, ButNotWhatSignalsToHandleNames) {
  WeftrunProcess run(shell(
      1,
      "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; " + kRest,
      {"--signals-to-handle=SIGUSR2"}));
  run.wait_for("ready");
  run.send(SIGUSR1);
  run.wait_for("one");
  run.send(SIGUSR2);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.output(), HasSubstr("two"));
  EXPECT_THAT(run.error(), HasSubstr("SIGUSR2 received and forwarded"));
}

TEST_F(SeveralHosts, PassSignalsOnToTheirOwnWorkersAlone) {
  const std::string script =
      "trap 'echo usr1 of $RANK' USR1; trap 'exit 0' USR2; " + kRest;
  const auto second = host(1, script);
  const auto first = host(0, script);
  first->wait_for("ready");
  second->wait_for("ready");
  second->send(SIGUSR1);
  second->wait_for("usr1 of 1");
  first->send(SIGUSR2);
  second->send(SIGUSR2);
  EXPECT_EQ(first->wait(), 0) << first->error();
  EXPECT_EQ(second->wait(), 0) << second->error();
  EXPECT_THAT(first->output(), Not(HasSubstr("usr1")));
}

TEST_F(SeveralHosts, ReportThatNoWorkerGotTheSignal) {
  const auto first = host(0, "true");
  // Who is refused has met a host 0 that is there.
  host(1, "true", {"--token-file=" + token("other", 'b')})->wait();
  first->send(SIGUSR1);
  first->wait_for("SIGUSR1");
  EXPECT_THAT(
      first->error(), HasSubstr("SIGUSR1 received, but no worker runs"));
  first->send(SIGTERM);
  EXPECT_EQ(first->wait(), 143);
}

} // namespace
} // namespace weft::launcher
