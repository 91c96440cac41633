#include "launcher/process/outcome.h"

#include <signal.h>

#include <gtest/gtest.h>

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;

WorkerExit exited(int rank, int code, int seen_ms, bool stopped = false) {
  WorkerExit exit;
  exit.rank = rank;
  exit.code = code;
  exit.seen = std::chrono::steady_clock::time_point(milliseconds(seen_ms));
  exit.when = std::chrono::system_clock::time_point(milliseconds(seen_ms));
  exit.stopped = stopped;
  return exit;
}

WorkerExit killed(int rank, int signal, int seen_ms, bool stopped = false) {
  WorkerExit exit = exited(rank, 128 + signal, seen_ms, stopped);
  exit.signal = signal;
  return exit;
}

Outcome failure(std::vector<WorkerExit> exits) {
  Outcome outcome;
  outcome.exits = std::move(exits);
  return outcome;
}

int code_of(const Outcome& outcome) {
  return exit_code(outcome, root_cause(outcome));
}

TEST(Outcome, AllWellIsZero) {
  const auto outcome = failure({exited(1, 0, 5), exited(0, 0, 900)});
  EXPECT_FALSE(root_cause(outcome));
  EXPECT_EQ(code_of(outcome), 0);
}

TEST(Outcome, TheFirstFailureIsTheCause) {
  const auto outcome =
      failure({exited(3, 0, 1), exited(2, 5, 10), exited(0, 3, 11)});
  EXPECT_EQ(root_cause(outcome)->rank, 2);
  EXPECT_EQ(code_of(outcome), 5);
}

TEST(Outcome, ALostPeerGivesWayToWhatLostIt) {
  const auto by_signal = failure({exited(0, 150, 10), killed(1, SIGABRT, 120)});
  EXPECT_EQ(root_cause(by_signal)->rank, 1);
  EXPECT_EQ(code_of(by_signal), 134);
  const auto by_code = failure({exited(0, 150, 10), exited(1, 3, 10)});
  EXPECT_EQ(code_of(by_code), 3);
}

TEST(Outcome, AFailureLongAfterIsNoCause) {
  const auto outcome = failure({exited(0, 150, 10), killed(1, SIGSEGV, 400)});
  EXPECT_EQ(root_cause(outcome)->rank, 0);
  EXPECT_EQ(code_of(outcome), 150);
}

TEST(Outcome, WhatTheLauncherStoppedIsNoCause) {
  const auto outcome =
      failure({exited(0, 150, 10), killed(1, SIGTERM, 50, /*stopped=*/true)});
  EXPECT_EQ(root_cause(outcome)->rank, 0);
}

TEST(Outcome, OfFailuresSeenAtOnceASignalComesFirst) {
  const auto outcome =
      failure({exited(0, 1, 10), exited(1, 1, 10), killed(2, SIGKILL, 10)});
  EXPECT_EQ(root_cause(outcome)->rank, 2);
  EXPECT_EQ(code_of(outcome), 137);
}

WorkerExit with_time(WorkerExit exit, double failed_at_ms) {
  exit.error.time_ns = static_cast<int64_t>(failed_at_ms * 1e6);
  return exit;
}

TEST(Outcome, OfFailuresSeenAtOnceTheFirstByTheirOwnAccountIsTheCause) {
  const auto outcome = failure(
      {with_time(exited(0, 3, 10), 5.000002),
       with_time(exited(1, 4, 10), 5.000001),
       with_time(exited(2, 5, 10), 5.000003)});
  EXPECT_EQ(root_cause(outcome)->rank, 1);
  EXPECT_EQ(code_of(outcome), 4);
}

TEST(Outcome, ACauseThatIsSlowToEndIsStillTheCause) {
  const auto outcome = failure(
      {exited(0, 1, 100),
       with_time(exited(1, 3, 900, /*stopped=*/true), 90),
       // Failed because it was preempted, or was ended.
       with_time(exited(2, 4, 900, /*stopped=*/true), 400),
       with_time(killed(3, SIGTERM, 900, /*stopped=*/true), 80)});
  EXPECT_EQ(root_cause(outcome)->rank, 1);
  EXPECT_EQ(code_of(outcome), 3);
}

TEST(Outcome, AFailureIsACauseIfTheClockWasSetBack) {
  auto exit = exited(2, 3, 10);
  exit.error.time_ns = 5'000'000'000; // 5 s, seen after 10 ms
  EXPECT_EQ(root_cause(failure({exit}))->rank, 2);
}

TEST(Outcome, PeerLossYieldsToOtherFailures) {
  auto reset = with_time(killed(0, SIGABRT, 10), 9);
  reset.failure_cause = FailureCause::kLostPeer;
  const auto outcome = failure({reset, with_time(killed(1, SIGABRT, 12), 11)});
  EXPECT_EQ(root_cause(outcome)->rank, 1);
  EXPECT_EQ(root_cause(failure({reset}))->rank, 0);
}

TEST(Outcome, PeerLossYieldsToATimeout) {
  auto lost = with_time(exited(0, 150, 10), 9);
  lost.failure_cause = FailureCause::kLostPeer;
  auto late = with_time(exited(1, 150, 12), 11);
  late.failure_cause = FailureCause::kTimedOut;
  EXPECT_EQ(root_cause(failure({lost, late}))->rank, 1);
  const auto failed = with_time(exited(2, 3, 14), 13);
  EXPECT_EQ(root_cause(failure({lost, late, failed}))->rank, 2);
}

TEST(Outcome, OutOfMemoryIs137HoweverItEnded) {
  auto exit = killed(0, SIGABRT, 10);
  exit.failure_cause = FailureCause::kBadAlloc;
  EXPECT_EQ(code_of(failure({exit})), 137);
  exit = exited(0, 1, 10);
  exit.failure_cause = FailureCause::kOutOfMemory;
  EXPECT_EQ(code_of(failure({exit})), 137);
}

TEST(Outcome, AfterASignalTheWorkersSharedCodeCounts) {
  Outcome outcome = failure({exited(0, 143, 1, true), exited(1, 143, 2, true)});
  outcome.requested_signal = SIGINT;
  EXPECT_EQ(code_of(outcome), 143);
  outcome.exits[1].code = 0;
  EXPECT_EQ(code_of(outcome), 130);
  outcome.exits[0].code = 0;
  EXPECT_EQ(code_of(outcome), 0);
  outcome.stuck = {2};
  EXPECT_EQ(code_of(outcome), 130);
}

} // namespace
} // namespace weft::launcher
