#include "launcher/report/failure_diagnosis.h"

#include <signal.h>

#include <gtest/gtest.h>

namespace weft::launcher {
namespace {

WorkerExit exited(int code) {
  WorkerExit exit;
  exit.code = code;
  return exit;
}

WorkerExit killed(int signal) {
  WorkerExit exit = exited(128 + signal);
  exit.signal = signal;
  return exit;
}

TEST(FailureDiagnosisTest, ALostConnectionIsAConsequence) {
  for (const char* words :
       {"[/gloo/pair.cc:553] Connection reset by peer",
        "Connection closed by peer [127.0.0.1]:4711",
        "write: Broken pipe",
        "A peer is gone: rank 3"}) {
    SCOPED_TRACE(words);
    EXPECT_EQ(diagnose_stderr(exited(1), words), FailureCause::kLostPeer);
    EXPECT_EQ(diagnose_stderr(killed(SIGABRT), words), FailureCause::kLostPeer);
    EXPECT_EQ(diagnose_stderr(killed(SIGSEGV), words), FailureCause::kNone);
    EXPECT_EQ(diagnose_stderr(killed(SIGKILL), words), FailureCause::kNone);
  }
  EXPECT_EQ(diagnose_stderr(exited(150), ""), FailureCause::kLostPeer);
}

TEST(FailureDiagnosisTest, ATimeoutIsNoLostConnection) {
  const char* words = "ERROR 150 rank=1 [all_reduce] Timed out after 3 s; ...";
  EXPECT_EQ(diagnose_stderr(exited(150), words), FailureCause::kTimedOut);
  EXPECT_EQ(diagnose_stderr(exited(1), words), FailureCause::kNone);
}

TEST(FailureDiagnosisTest, AMismatchInGlooIsNone) {
  EXPECT_EQ(
      diagnose_stderr(
          killed(SIGABRT),
          "an uncaught gloo::EnforceNotMet: [enforce fail at "
          "third_party/gloo/pair.cc:490] op.preamble.length <= op.nbytes. 8 vs "
          "4"),
      FailureCause::kNone);
}

TEST(FailureDiagnosisTest, AFailedAllocationIsOutOfMemory) {
  const char* words = "an uncaught std::bad_alloc: std::bad_alloc";
  EXPECT_EQ(diagnose_stderr(killed(SIGABRT), words), FailureCause::kBadAlloc);
  EXPECT_EQ(
      diagnose_stderr(exited(137), "out of memory (std::bad_alloc)"),
      FailureCause::kBadAlloc);
  EXPECT_EQ(diagnose_stderr(killed(SIGKILL), words), FailureCause::kNone);
  EXPECT_EQ(
      diagnose_stderr(exited(2), "checked for bad_alloc"), FailureCause::kNone);
}

class DiagnosedFailures : public ::testing::Test {
 protected:
  // The cause of a worker that ended so and wrote `words` to standard error.
  FailureCause cause(const WorkerExit& exit, const std::string& words) {
    Outcome outcome;
    outcome.exits.push_back(exit);
    OomMonitor memory({});
    const ReportSources sources{
        .host = "loom",
        .worker_count = 1,
        .tail =
            [&](int) {
              LineTail tail;
              tail.append(words + "\n");
              return tail;
            },
        .logs = ""};
    diagnose_failures(outcome, sources, memory);
    return outcome.exits.front().failure_cause;
  }
  static WorkerExit with_cause(WorkerExit exit, base::ErrorCause cause) {
    exit.error.message = "Broken pipe";
    exit.error.cause = cause;
    return exit;
  }
};

TEST_F(DiagnosedFailures, AreWhatTheErrorFileStates) {
  using base::ErrorCause;
  const char* misleading = "out of memory, timed out after 3 s";
  EXPECT_EQ(
      cause(with_cause(exited(1), ErrorCause::kOther), misleading),
      FailureCause::kNone);
  EXPECT_EQ(
      cause(with_cause(exited(150), ErrorCause::kLostPeer), misleading),
      FailureCause::kLostPeer);
  EXPECT_EQ(
      cause(with_cause(exited(150), ErrorCause::kTimedOut), ""),
      FailureCause::kTimedOut);
  EXPECT_EQ(
      cause(with_cause(exited(137), ErrorCause::kOutOfMemory), ""),
      FailureCause::kBadAlloc);
  EXPECT_EQ(
      cause(with_cause(killed(SIGSEGV), ErrorCause::kLostPeer), ""),
      FailureCause::kNone);
}

TEST_F(DiagnosedFailures, AreFoundInTheWordsOfOtherPrograms) {
  auto other = exited(1);
  other.error.message = "RuntimeError: Connection reset by peer";
  EXPECT_EQ(cause(other, ""), FailureCause::kLostPeer);
  EXPECT_EQ(cause(exited(1), "write: Broken pipe"), FailureCause::kLostPeer);
  EXPECT_EQ(cause(exited(1), "KeyError"), FailureCause::kNone);
}

} // namespace
} // namespace weft::launcher
