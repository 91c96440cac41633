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

TEST(Evidence, ALostConnectionIsAConsequence) {
  for (const char* words :
       {"[/gloo/pair.cc:553] Connection reset by peer",
        "Connection closed by peer [127.0.0.1]:4711",
        "write: Broken pipe",
        "A peer is gone: rank 3"}) {
    SCOPED_TRACE(words);
    EXPECT_EQ(find_in_words(exited(1), words), Finding::kLostPeer);
    EXPECT_EQ(find_in_words(killed(SIGABRT), words), Finding::kLostPeer);
    EXPECT_EQ(find_in_words(killed(SIGSEGV), words), Finding::kNone);
    EXPECT_EQ(find_in_words(killed(SIGKILL), words), Finding::kNone);
  }
  EXPECT_EQ(find_in_words(exited(150), ""), Finding::kLostPeer);
}

TEST(Evidence, AMismatchInGlooIsNone) {
  EXPECT_EQ(
      find_in_words(
          killed(SIGABRT),
          "an uncaught gloo::EnforceNotMet: [enforce fail at "
          "third_party/gloo/pair.cc:490] op.preamble.length <= op.nbytes. 8 vs "
          "4"),
      Finding::kNone);
}

TEST(Evidence, AFailedAllocationIsOutOfMemory) {
  const char* words = "an uncaught std::bad_alloc: std::bad_alloc";
  EXPECT_EQ(find_in_words(killed(SIGABRT), words), Finding::kBadAlloc);
  EXPECT_EQ(
      find_in_words(exited(137), "out of memory (std::bad_alloc)"),
      Finding::kBadAlloc);
  EXPECT_EQ(find_in_words(killed(SIGKILL), words), Finding::kNone);
  EXPECT_EQ(find_in_words(exited(2), "checked for bad_alloc"), Finding::kNone);
}

} // namespace
} // namespace weft::launcher
