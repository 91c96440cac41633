#include "launcher/report/report.h"

#include <fstream>
#include <map>

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class Report : public ::testing::Test {
 protected:
  WorkerExit& add(int rank, int code, int signal = 0, bool stopped = false) {
    outcome_.exits.push_back(
        {.rank = rank,
         .pid = 100 + rank,
         .code = code,
         .signal = signal,
         .seen = {},
         .when = {},
         .stopped = stopped});
    return outcome_.exits.back();
  }

  std::string text() {
    for (auto& exit : outcome_.exits) {
      const auto path = folder_ / std::to_string(exit.rank);
      if (std::filesystem::exists(path)) {
        exit.error = read_error_file(path);
      }
    }
    const auto [text, line] = report(
        outcome_,
        root_cause(outcome_),
        {.host = "loom",
         .worker_count = 4,
         .tail =
             [&](int rank) {
               LineTail tail;
               tail.append(stderr_[rank]);
               return tail;
             },
         .logs = ""});
    return line.empty()   ? text
           : text.empty() ? line + "\n"
                          : text + "\n" + line + "\n";
  }

  test::TempFolder folder_;
  Outcome outcome_;
  std::map<int, std::string> stderr_;
};

TEST_F(Report, SaysNothingAfterSuccess) {
  add(0, 0);
  EXPECT_EQ(text(), "");
}

TEST_F(Report, NamesTheRankItsEndAndItsLastWords) {
  add(2, 137, SIGKILL);
  add(0, 150);
  add(1, 143, SIGTERM, /*stopped=*/true);
  add(3, 0);
  stderr_[2] = "about to go\x1b[2J\n";
  const auto report = text();
  EXPECT_THAT(report, HasSubstr("2 of 4 workers failed"));
  EXPECT_THAT(report, HasSubstr("rank 2    pid 102      signal 9 (SIGKILL)"));
  EXPECT_THAT(report, HasSubstr("rank 0    pid 100      exit code 150"));
  EXPECT_THAT(report, HasSubstr("on loom"));
  EXPECT_THAT(report, HasSubstr("then ended by weftrun: rank 1\n"));
  EXPECT_THAT(report, HasSubstr("    | about to go\\x1b[2J\n"));
  EXPECT_THAT(
      report,
      EndsWith("\nERROR 137 rank=2 op=launch worker killed by signal 9 "
               "(SIGKILL)\n"));
}

TEST_F(Report, EndsWithTheWorkersOwnErrorLine) {
  add(1, 3);
  stderr_[1] = "ERROR 3 rank=1 op=loss loss is nan at step 7\nbye\n";
  EXPECT_THAT(
      text(), EndsWith("\nERROR 3 rank=1 op=loss loss is nan at step 7\n"));
}

TEST_F(Report, AnErrorLineOfAnotherCodeIsNotReused) {
  add(1, 134, SIGABRT);
  stderr_[1] = "ERROR 150 rank=1 op=all_reduce lost\n";
  EXPECT_THAT(
      text(),
      EndsWith("\nERROR 134 rank=1 op=launch worker killed by signal 6 "
               "(SIGABRT)\n"));
}

TEST_F(Report, OneRankMaySpeakForAllThatFailedAlike) {
  add(1, 2);
  add(0, 2);
  stderr_[0] = "ERROR 2 rank=0 op=recipe a.yaml:3:1 steps: unknown key\n";
  EXPECT_THAT(
      text(),
      EndsWith("\nERROR 2 rank=0 op=recipe a.yaml:3:1 steps: unknown key\n"));
}

TEST_F(Report, AStopByASignalIsOneLine) {
  add(0, 143, SIGTERM, /*stopped=*/true);
  add(1, 143, 0, /*stopped=*/true);
  outcome_.requested_signal = SIGTERM;
  EXPECT_EQ(
      text(), "ERROR 143 rank=0 op=launch stopped by signal 15 (SIGTERM)\n");
}

TEST_F(Report, AStopInWhichAWorkerFailedNamesIt) {
  add(0, 143, SIGTERM, /*stopped=*/true);
  add(1, 4, 0, /*stopped=*/true);
  stderr_[1] = "no space left\n";
  outcome_.requested_signal = SIGTERM;
  const auto report = text();
  EXPECT_THAT(report, HasSubstr("rank 1    pid 101      exit code 4"));
  EXPECT_THAT(report, HasSubstr("| no space left"));
  EXPECT_THAT(report, HasSubstr("\nERROR 143 rank=1 op=launch stopped by"));
}

TEST_F(Report, ShowsTheMessageOfAnErrorFile) {
  add(0, 1);
  std::ofstream(folder_ / "0")
      << R"({"message": {"message": "ValueError: x\nsecond", "extraInfo": {}}})";
  const auto report = text();
  EXPECT_THAT(
      report, HasSubstr("error file of rank 0:\n    | ValueError: x\n"));
  EXPECT_THAT(report, HasSubstr("    | second\n"));
}

TEST_F(Report, AMessageThatStandardErrorHasIsNotRepeated) {
  add(0, 3);
  stderr_[0] = "ERROR 3 rank=0 op=train loss is nan\n";
  std::ofstream(folder_ / "0")
      << R"({"message": {"message": "loss is nan", "extraInfo": {}}})";
  EXPECT_THAT(text(), Not(HasSubstr("error file")));
}

TEST_F(Report, ShowsTheBacktraceOfTheCause) {
  add(0, 139, SIGSEGV);
  std::ofstream(folder_ / "0") << R"({"message": {"message": "SIGSEGV",
    "extraInfo": {"timestamp_ns": "1000000000",
    "py_callstack": "#0 /lib/libx.so(+0x12) _ZN1x1yEv+0x2\nSIGSEGV"}}})";
  EXPECT_THAT(
      text(),
      HasSubstr("  backtrace of rank 0:\n    | #0 x::y() in libx.so\n"));
}

TEST_F(Report, MarksConsequencesAndSortsByTime) {
  using std::chrono::milliseconds;
  add(0, 150).when += milliseconds(30);
  auto& other = add(1, 134, SIGABRT);
  other.failure_cause = FailureCause::kLostPeer;
  other.host = "shuttle";
  other.when += milliseconds(20);
  add(2, 3).when += milliseconds(25);
  const auto report = text();
  const auto place = [&](const char* part) {
    EXPECT_THAT(report, HasSubstr(part));
    return report.find(part);
  };
  EXPECT_LT(
      place(" on shuttle (lost a peer)\n  rank 2 "),
      place(" on loom  <- first cause\n  rank 0 "));
  place(" on loom (lost a peer)\n");
}

// It had failed before weftrun ended it.
TEST_F(Report, WhoFailedByItselfWasNotEndedByWeftrun) {
  add(2, 137, SIGKILL);
  add(0, 150, 0, /*stopped=*/true).error.time_ns = 1'000'000'000;
  add(1, 150, 0, /*stopped=*/true);
  const auto report = text();
  EXPECT_THAT(report, HasSubstr("2 of 4 workers failed"));
  EXPECT_THAT(report, HasSubstr("  rank 0    pid 100      exit code 150, "));
  EXPECT_THAT(report, HasSubstr("then ended by weftrun: rank 1\n"));
}

TEST_F(Report, TellsWhoKilledAWorkerWhereThatIsKnown) {
  auto& exit = add(1, 137, SIGKILL);
  EXPECT_THAT(
      text(), HasSubstr("signal 9 (SIGKILL) (out of memory? see dmesg)"));
  exit.failure_cause = FailureCause::kSigkillSourceUnknown;
  EXPECT_THAT(
      text(),
      EndsWith("\nERROR 137 rank=1 op=launch worker killed by signal 9 "
               "(SIGKILL) from another process; not an OOM kill\n"));
  exit.failure_cause = FailureCause::kOutOfMemory;
  exit.peak_rss_bytes = 700LL << 20;
  exit.memory_limit_bytes = 512LL << 20;
  EXPECT_THAT(
      text(),
      EndsWith("\nERROR 137 rank=1 op=launch worker out of memory: killed by "
               "the kernel at 700 MiB (limit 512 MiB)\n"));
}

TEST_F(Report, ABrokenErrorFileIsNoMessage) {
  EXPECT_EQ(read_error_file(folder_ / "absent").message, "");
  for (const char* content :
       {"",
        "{",
        "[]",
        "{\"message\": 3}",
        "{\"message\": {\"message\": []}}"}) {
    SCOPED_TRACE(content);
    std::ofstream(folder_ / "f") << content;
    EXPECT_EQ(read_error_file(folder_ / "f").message, "");
  }
  std::ofstream(folder_ / "f") << R"({"message": "plain"})";
  EXPECT_EQ(read_error_file(folder_ / "f").message, "plain");
  EXPECT_THAT(text(), Not(HasSubstr("error file")));
}

} // namespace
} // namespace weft::launcher
