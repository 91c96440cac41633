// Which failure of a run is its cause, and what it was, with the real program.
#include <fstream>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/process/memory_events.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

/// Shell for a worker that leaves an error file as weft does.
std::string leave_error(const std::string& message, const char* time_ns) {
  return "echo '{\"message\": {\"message\": \"" + message +
         "\", \"extraInfo\": {\"timestamp_ns\": \"'" + time_ns +
         "'\"}}}' > $TORCHELASTIC_ERROR_FILE; ";
}

TEST(RootCauseTest, IsTheFirstFailureByTheWorkersOwnClocks) {
  // Rank 1 fails first and is the last to end: both are seen as they end.
  const test::TempFolder folder;
  const std::string failed = folder / "failed";
  WeftrunProcess run(shell(
      2,
      "if [ $RANK = 1 ]; then " + leave_error("first", "$(date +%s%N)") +
          "touch '" + failed + "'; sleep 0.1; exit 3; fi; while [ ! -e '" +
          failed + "' ]; do sleep 0.01; done; " +
          leave_error("second", "$(date +%s%N)") + "exit 4"));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.error(), HasSubstr("error file of rank 1:\n    | first\n"));
  EXPECT_THAT(run.error(), MatchesRegex(".*rank 1 [^\n]*<- first cause\n.*"));
}

TEST(RootCauseTest, IsTheRankThatFailedFirst) {
  // As gloo does with a mismatch: a thread of rank 2 aborts, the others see
  // their connections reset, and are gone before it.
  WeftrunProcess run(shell(
      3,
      "ulimit -c 0; if [ $RANK = 2 ]; then sleep 0.1; " +
          leave_error("enforce fail: 8 vs 4", "$(date +%s%N)") +
          "kill -ABRT $$; fi; echo 'Connection reset by peer' >&2; exit 1"));
  EXPECT_EQ(run.wait(), 134);
  EXPECT_EQ(count(run.error(), " (lost a peer)\n"), 2);
  EXPECT_THAT(run.error(), MatchesRegex(".*rank 2 [^\n]*<- first cause\n.*"));
  EXPECT_THAT(run.last_error_line(), HasSubstr("ERROR 134 rank=2"));
}

TEST(RootCauseTest, APeerThatIsAloneWithItsLossIsTheCause) {
  WeftrunProcess run(shell(1, "echo 'Connection reset by peer' >&2; exit 1"));
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.error(), HasSubstr(" (lost a peer)  <- first to say so\n"));
}

TEST(RootCauseTest, SigkillIsNotTakenForAnOomKill) {
  if (!host_oom_kills()) {
    GTEST_SKIP() << "this kernel does not count its kills";
  }
  WeftrunProcess run(shell(1, "kill -KILL $$"));
  EXPECT_EQ(run.wait(), 137);
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr("from another process; not an OOM kill"));
}

/// A worker that takes all the memory it gets, for a shell.
const std::string kHungryWorker = "'" WEFT_HUNGRY_WORKER "'";

TEST(RootCauseTest, AnAllocationThatFailsIsOutOfMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more address space than there would be";
#endif
  WeftrunProcess run(shell(
      2,
      "ulimit -c 0; ulimit -v 300000; if [ $RANK = 1 ]; then exec " +
          kHungryWorker + "; fi; sleep 100"));
  EXPECT_EQ(run.wait(), 137);
  EXPECT_THAT(
      run.last_error_line(),
      MatchesRegex("ERROR 137 rank=1 op=launch worker killed by signal 6 "
                   ".SIGABRT., out of memory: an allocation failed at [0-9]+ "
                   "MiB"));
}

/// A memory cgroup of version 1 below this process's, while it lives.
class SmallCgroup {
 public:
  explicit SmallCgroup(int64_t bytes) {
    const auto own = memory_cgroup(getpid());
    if (!own || own->is_v2) {
      return;
    }
    folder_ = own->folder / ("weft_test_" + std::to_string(getpid()));
    made_ = mkdir(folder_.c_str(), 0700) == 0;
    std::ofstream(folder_ / "memory.limit_in_bytes") << bytes << std::flush;
  }
  ~SmallCgroup() {
    if (made_) {
      rmdir(folder_.c_str());
    }
  }
  bool made() const { return made_; }
  std::string processes() const { return folder_ / "cgroup.procs"; }

 private:
  std::filesystem::path folder_;
  bool made_ = false;
};

TEST(RootCauseTest, ACrashHandlersMessageDoesNotHideAFailedAllocation) {
  WeftrunProcess run(shell(
      1,
      "echo \"DefaultCPUAllocator: can't allocate memory\" >&2; " +
          leave_error("SIGABRT in thread main", "$(date +%s%N)") +
          "ulimit -c 0; kill -ABRT $$"));
  EXPECT_EQ(run.wait(), 137);
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 137 rank=0 "));
  EXPECT_THAT(run.last_error_line(), HasSubstr("an allocation failed"));
}

TEST(RootCauseTest, AKillByTheKernelForMemoryIsNamed) {
  const SmallCgroup cgroup(64 << 20);
  if (!cgroup.made()) {
    GTEST_SKIP() << "no memory cgroup of version 1 can be made here";
  }
  // In the end weftrun looks for the cgroup of a worker once a second.
  WeftrunProcess run(shell(
      2,
      "if [ $RANK = 1 ]; then echo $$ > " + cgroup.processes() +
          "; sleep 2; exec " + kHungryWorker + "; fi; sleep 100"));
  EXPECT_EQ(run.wait(), 137);
  EXPECT_THAT(
      run.last_error_line(),
      MatchesRegex("ERROR 137 rank=1 op=launch worker out of memory: killed by "
                   "the kernel at [5-8][0-9] MiB .limit 64 MiB."));
}

} // namespace
} // namespace weft::launcher
