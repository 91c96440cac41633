// When and how a run may be preempted: before its first step, in evaluations
// and saves, by another signal, on one rank, more than once.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

// Far more than what is seen, far less than a timeout of 300 s.
constexpr seconds kSoon{10};

// By nobody's parent, as an administrator would.
void tell(pid_t pid, const std::string& signal) {
  ASSERT_EQ(
      std::system(("kill -" + signal + " " + std::to_string(pid)).c_str()), 0);
}

bool handles(pid_t pid, int signal) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigCgt:")) {
      const auto mask = std::stoull(line.substr(7), nullptr, 16);
      return ((mask >> (signal - 1)) & 1) != 0;
    }
  }
  return false;
}

class PreemptMomentsTest : public ProcessTest {
 protected:
  static Words
  endless(int dp, int tp, const std::string& output, const Words& more = {}) {
    Words words{
        "mesh.dp=" + std::to_string(dp),
        "mesh.tp=" + std::to_string(tp),
        "train.steps=100000",
        "eval.every=0",
        "output_dir=" + output};
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  }

  /// Until process `pid` of `run` has a handler of `signal`.
  static void wait_for_handler(Process& run, pid_t pid, int signal) {
    while (!handles(pid, signal)) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.output() << run.error();
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  void wait_for_metrics(Process& run, const std::string& output) const {
    while (lines_of(metrics_text(output)).size() < 2) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.output() << run.error();
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  void wait_for_output(Process& run, const std::string& text) const {
    while (run.output().find(text) == std::string::npos) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.output() << run.error();
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  /// Returns the number of error lines of the workers. weftrun repeats each
  /// once.
  static int64_t error_lines(const Process& run) {
    return std::ranges::count_if(lines_of(run.error()), [](const auto& line) {
      return line.starts_with("ERROR ");
    });
  }

  void expect_whole(const std::string& output) const {
    const auto step = test::read_text(folder_ / output / "checkpoints/latest");
    ASSERT_NE(step, "");
    Process verify(
        {WEFT_WEFT,
         "checkpoint",
         "verify",
         output + "/checkpoints/" + step.substr(0, step.size() - 1)},
        folder_);
    EXPECT_EQ(verify.wait(), 0) << verify.error();
    EXPECT_EQ(step, "step-" + std::to_string(metrics(output).size()) + "\n");
  }
};

// Loading, rendezvous, building, the first steps: at random moments, and then
// the run goes on.
TEST_F(PreemptMomentsTest, AtAnyMomentFromTheStartOn) {
  std::mt19937 random(25);
  const auto words = launched(2, endless(2, 1, "run"));
  for (int i = 0; i < 12; ++i) {
    const auto moment = milliseconds(random() % 900);
    Process run(words, folder_);
    std::this_thread::sleep_for(moment);
    run.send(SIGTERM);
    EXPECT_EQ(run.wait(kSoon), 143) << moment.count() << run.error();
    EXPECT_LE(error_lines(run), 2) << run.error();
    EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 143 rank=")) << i;
  }
  Process run(words, folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "run"));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(kSoon), 143);
  expect_whole("run");
}

TEST_F(PreemptMomentsTest, ARankThatWaitsForOthersDoesNotWaitForTheTimeout) {
  for (const int rank : {0, 1}) {
    Process run(
        endless(2, 1, "run"), folder_, rank_variables(rank, 2, free_port()));
    ASSERT_NO_FATAL_FAILURE(
        wait_for_handler(run, run.pid(), rank == 0 ? SIGTERM : SIGUSR1));
    tell(run.pid(), rank == 0 ? "TERM" : "USR1");
    EXPECT_EQ(run.wait(kSoon), 143);
    EXPECT_EQ(
        run.error(),
        "ERROR 143 rank=" + std::to_string(rank) + " op=train " +
            (rank == 0 ? "SIGTERM" : "SIGUSR1") +
            " before the first step: nothing was to be saved, and the same "
            "command starts again\n");
  }
  // By its launcher, who tells rank 0 as well.
  Process run(endless(2, 1, "run"), folder_, rank_variables(1, 2, free_port()));
  ASSERT_NO_FATAL_FAILURE(wait_for_handler(run, run.pid(), SIGTERM));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(kSoon), 143);
  EXPECT_EQ(run.error(), "");
}

// Whether a process of this network has a connection to `port`.
bool is_connected_to(int port) {
  const auto remote = fmt::format(":{:04X} 01 ", port);
  return test::read_text("/proc/net/tcp").find(remote) != std::string::npos ||
         test::read_text("/proc/net/tcp6").find(remote) != std::string::npos;
}

// A launcher signals rank 0 first, which ends at once.
TEST_F(PreemptMomentsTest, ARankWhoseSignalComesAfterRankZerosEndSaysNothing) {
  const int port = free_port();
  const auto words = endless(3, 1, "run", {"train.global_batch_size=6"});
  Process zero(words, folder_, rank_variables(0, 3, port));
  Process one(words, folder_, rank_variables(1, 3, port)); // none is rank 2
  ASSERT_NO_FATAL_FAILURE(wait_for_handler(one, one.pid(), SIGTERM));
  while (!is_connected_to(port)) {
    ASSERT_FALSE(one.wait(seconds(0))) << one.error();
    std::this_thread::sleep_for(milliseconds(2));
  }
  zero.send(SIGTERM);
  EXPECT_EQ(zero.wait(kSoon), 143) << zero.error();
  std::this_thread::sleep_for(milliseconds(150));
  one.send(SIGTERM);
  EXPECT_EQ(one.wait(kSoon), 143);
  EXPECT_EQ(one.error(), "");
}

TEST_F(PreemptMomentsTest, OneRankThatEndsBeforeTheFirstStepEndsAll) {
  Process run(launched(2, endless(2, 1, "run", {"model.layers=24"})), folder_);
  std::map<int, ProcessWatch> workers;
  while (workers.size() < 2) {
    workers = workers_of(run.pid());
  }
  ASSERT_NO_FATAL_FAILURE(wait_for_handler(run, workers.at(1).pid(), SIGTERM));
  tell(workers.at(1).pid(), "TERM");
  EXPECT_EQ(run.wait(kSoon), 143) << run.error();
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 143 rank="));
}

TEST_F(PreemptMomentsTest, AnEvaluationIsCutShort) {
  std::string text;
  for (int i = 0; i < 900'000; ++i) {
    text += "int value_" + std::to_string(i % 1000) + " = 1;\n";
  }
  write("corpus.txt", text);
  Process run(
      launched(
          4, endless(2, 2, "run", {"eval.every=1", "eval.batches=100000"})),
      folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_output(run, "starts from step 0"));
  std::this_thread::sleep_for(seconds(1));
  const auto start = Clock::now();
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(kSoon), 143) << run.error();
  EXPECT_LT(Clock::now() - start, seconds(5));
  EXPECT_THAT(run.last_error_line(), HasSubstr("SIGTERM: step 1 is saved in"));
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 1);
  EXPECT_FALSE(lines[0].contains("eval_loss"));
  EXPECT_TRUE(lines[0].at("eval_interrupted"));
  expect_whole("run");
  // What is missing is done first.
  expect_success(launched(
      4,
      endless(
          2, 2, "run", {"eval.every=1", "eval.batches=2", "train.steps=2"})));
  const auto whole = metrics("run");
  ASSERT_EQ(whole.size(), 2);
  for (const auto& line : whole) {
    EXPECT_TRUE(line.at("eval_loss").is_number());
    EXPECT_FALSE(line.contains("eval_interrupted"));
  }
}

TEST_F(PreemptMomentsTest, SavesAreWholeAndOneLineSaysSo) {
  std::mt19937 random(25);
  for (const auto* async : {"false", "true"}) {
    const auto output = std::string("async_") + async;
    Process run(
        launched(
            4,
            endless(
                2,
                2,
                output,
                {"checkpoint.every=1",
                 "checkpoint.keep=2",
                 std::string("checkpoint.async=") + async})),
        folder_);
    ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, output));
    std::this_thread::sleep_for(milliseconds(random() % 50));
    const auto workers = workers_of(run.pid());
    ASSERT_EQ(workers.size(), 4);
    // Again and again, while it ends.
    for (int i = 0; i < 8; ++i) {
      for (const auto& [rank, worker] : workers) {
        if (rank != 2) {
          kill(worker.pid(), SIGTERM);
        }
      }
      std::this_thread::sleep_for(milliseconds(3));
    }
    EXPECT_EQ(run.wait(kSoon), 143) << run.error();
    EXPECT_EQ(error_lines(run), 2) << "rank 0's and weftrun's\n" << run.error();
    EXPECT_THAT(
        run.last_error_line(),
        AllOf(
            StartsWith("ERROR 143 rank=0 op=train SIGTERM: step "),
            HasSubstr(" is saved in " + output)));
    expect_whole(output);
  }
}

TEST_F(PreemptMomentsTest, Usr1IsAWarningOfTheScheduler) {
  const auto words = launched(2, endless(1, 2, "run"));
  for (int i = 0; i < 2; ++i) { // and the requeued job goes on
    Process run(words, folder_);
    const auto before = metrics("run").size();
    while (metrics_so_far("run").size() < before + 2) {
      ASSERT_FALSE(run.wait(seconds(0))) << run.error();
      std::this_thread::sleep_for(milliseconds(2));
    }
    run.send(SIGUSR1);
    EXPECT_EQ(run.wait(kSoon), 143) << run.error();
    EXPECT_THAT(
        run.last_error_line(),
        StartsWith(
            "ERROR 143 rank=0 op=train SIGUSR1: step " +
            std::to_string(metrics("run").size()) + " is saved in run/"));
    EXPECT_THAT(
        run.output(),
        HasSubstr(
            i == 0 ? "starts from step 0"
                   : "resumes from run/checkpoints/step-"));
    expect_whole("run");
  }
}

// One that was told by itself is started again, and goes on; once weftrun is
// told, that is the end.
TEST_F(PreemptMomentsTest, ARunThatIsToldThroughWeftrunIsNotRestarted) {
  auto words = launched(2, endless(2, 1, "run"));
  words.insert(words.begin() + 1, "--max-restarts=3");
  Process run(words, folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_metrics(run, "run"));
  {
    const auto workers = workers_of(run.pid());
    ASSERT_TRUE(workers.contains(1));
    tell(workers.at(1).pid(), "TERM");
  }
  ASSERT_NO_FATAL_FAILURE(
      wait_for_output(run, "resumes from run/checkpoints/step-"));
  EXPECT_THAT(
      run.error(),
      AllOf(
          HasSubstr("ERROR 143 rank=0 op=train SIGTERM on rank 1: step "),
          HasSubstr("weftrun: restart 1 of 3")));
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(kSoon), 143) << run.error();
  EXPECT_THAT(run.error(), Not(HasSubstr("restart 2")));
  expect_whole("run");
}

// Who has nothing to save ends as usual.
TEST_F(PreemptMomentsTest, OtherCommandsDieOfTheSignal) {
  Process run(
      {WEFT_WEFT, "bench", "step", "--dp=1", "--tp=1", "--steps=1000000"},
      folder_);
  // A crash's; SIGUSR1 has none.
  ASSERT_NO_FATAL_FAILURE(wait_for_handler(run, run.pid(), SIGSEGV));
  run.send(SIGUSR1);
  EXPECT_EQ(run.wait(kSoon), 128 + SIGUSR1);
  EXPECT_EQ(error_lines(run), 0) << run.error();
}

} // namespace
} // namespace weft::test
