#include "launcher/rendezvous/restart_policy.h"

#include <filesystem>
#include <utility>
#include <vector>

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

RunResult failed(int code, const std::string& line = "ERROR") {
  RunResult run_result;
  run_result.code = code;
  run_result.line = line;
  return run_result;
}

std::vector<int64_t> delays_of(RestartPolicy& restarts, int attempts) {
  std::vector<int64_t> delays;
  for (int i = 0; i < attempts; ++i) {
    auto run_result = failed(137);
    restarts.decide(run_result, milliseconds(10));
    delays.push_back(
        run_result.restart_after ? run_result.restart_after->count() / 1000
                                 : -1);
  }
  return delays;
}

TEST(RestartPolicy, WaitTwiceAsLongEachTimeUpToHalfAMinute) {
  RestartPolicy restarts(8);
  EXPECT_EQ(
      delays_of(restarts, 9),
      (std::vector<int64_t>{1, 2, 4, 8, 16, 30, 30, 30, -1}));
}

TEST(RestartPolicy, WaitLittleAgainAfterAnAttemptThatLasted) {
  RestartPolicy restarts(9);
  delays_of(restarts, 4);
  auto run_result = failed(137);
  restarts.decide(run_result, seconds(61));
  EXPECT_EQ(run_result.restart_after, milliseconds(1000));
  EXPECT_EQ(restarts.count(), 5);
}

TEST(RestartPolicy, AnAttemptLastsAsLongAsItsUserSays) {
  RestartPolicy restarts(9, seconds(10));
  delays_of(restarts, 4);
  for (const auto& [lasted, delay] :
       std::vector<std::pair<int, int>>{{9, 16}, {10, 1}, {11, 1}, {9, 2}}) {
    auto run_result = failed(137);
    restarts.decide(run_result, seconds(lasted));
    EXPECT_EQ(run_result.restart_after, seconds(delay)) << lasted;
  }
}

TEST(RestartPolicy, ComeAfterCodesThatMayEndOtherwiseNextTime) {
  for (const int code : {1, 128, 134, 137, 143, 150, 255}) {
    EXPECT_TRUE(is_retryable(code)) << code;
  }
  for (const int code : {0, 2, 3, 4, 5, 127}) {
    EXPECT_FALSE(is_retryable(code)) << code;
  }
}

TEST(RestartPolicy, GivingUpGoesBackToTheFirstErrorOfTheRow) {
  RestartPolicy restarts(2);
  auto first = failed(134, "first");
  restarts.decide(first, seconds(61));
  auto second = failed(137, "second");
  restarts.decide(second, seconds(61)); // it lasted: a new row
  auto third = failed(150, "third");
  restarts.decide(third, seconds(1));
  EXPECT_FALSE(third.restart_after);
  EXPECT_EQ(third.code, 137);
  EXPECT_EQ(third.line, "second");
  EXPECT_THAT(third.note, HasSubstr("2 restarts did not help"));
  EXPECT_THAT(third.note, HasSubstr("of attempt 1"));
}

TEST(RestartedRun, SucceedsInTheEnd) {
  const test::TempFolder folder;
  const std::string logs = folder / "logs";
  WeftrunProcess run(shell(
      2,
      "echo \"$RANK:$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS "
      "$MASTER_PORT\"; if [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ];"
      " then kill -9 $$; fi",
      {"--max-restarts=3", "--log-dir", logs, "--tee=3", "--rdzv-id=job"}));
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(run.output(), AllOf(HasSubstr("1:0/3"), HasSubstr("1:1/3")));
  EXPECT_THAT(run.error(), HasSubstr("weftrun: restart 1 of 3 in 1 s"));
  EXPECT_THAT(run.error(), HasSubstr("rank=1 op=launch worker killed by"));
  int attempts = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(logs)) {
    attempts += entry.path().filename().string().starts_with("attempt_");
  }
  EXPECT_EQ(attempts, 2);
}

TEST(RestartedRun, StopsAtTheMostWithTheFirstError) {
  WeftrunProcess run(shell(
      1,
      "echo start; echo \"ERROR 134 rank=0 op=x number "
      "$TORCHELASTIC_RESTART_COUNT\" >&2; exit 134",
      {"--max-restarts=2"}));
  EXPECT_EQ(run.wait(), 134);
  EXPECT_EQ(count(run.output(), "start"), 3);
  EXPECT_THAT(run.error(), HasSubstr("restart 2 of 2 in 2 s"));
  EXPECT_THAT(run.error(), HasSubstr("| ERROR 134 rank=0 op=x number 2"));
  EXPECT_EQ(run.last_error_line(), "ERROR 134 rank=0 op=x number 0");
}

TEST(RestartedRun, IsNoneAfterAnErrorThatStays) {
  WeftrunProcess run(shell(1, "echo start; exit 5", {"--max-restarts=3"}));
  EXPECT_EQ(run.wait(), 5);
  EXPECT_EQ(count(run.output(), "start"), 1);
  EXPECT_THAT(run.error(), HasSubstr("not restarted: exit code 5"));
}

TEST(RestartedRun, IsNoneAfterASignal) {
  WeftrunProcess run(
      shell(1, "echo start; exec sleep 100", {"--max-restarts=3"}));
  run.wait_for("start");
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_EQ(count(run.output(), "start"), 1);
}

TEST(RestartedRun, EndsAtASignalWhileItWaits) {
  WeftrunProcess run(shell(1, "exit 1", {"--max-restarts=3"}));
  run.wait_for("restart 1 of 3");
  run.send(SIGTERM);
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.last_error_line(), HasSubstr("no worker running"));
}

} // namespace
} // namespace weft::launcher
