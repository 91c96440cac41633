// What weft leaves behind when it crashes or fails, and what weftrun makes of
// it.
#include <fstream>
#include <iterator>

#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using CrashCommandTest = ProcessTest;

TEST_F(CrashCommandTest, ACrashedRankIsTheCauseWithItsBacktrace) {
  Process run(
      launched(4, train({"mesh.tp=2", "train.steps=1000000", "eval.every=0"})),
      folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(run));
  const auto workers = workers_of(run.pid());
  ASSERT_EQ(workers.size(), 4);
  kill(workers.at(2).pid(), SIGSEGV);
  EXPECT_EQ(run.wait(seconds(20)), 139);
  EXPECT_THAT(
      run.last_error_line(),
      StartsWith(
          "ERROR 139 rank=2 op=crash SIGSEGV sent by process " +
          std::to_string(getpid()) + " in thread weft, last collective "));
  EXPECT_THAT(run.error(), HasSubstr("\n  backtrace of rank 2:\n    | #0 "));
  const auto causes = run.error().find("<- first cause");
  ASSERT_NE(causes, std::string::npos);
  EXPECT_EQ(run.error().find("<- first cause", causes + 1), std::string::npos);
}

TEST_F(CrashCommandTest, AFailureLeavesAnErrorFileToo) {
  Process run(
      {WEFT_WEFT, "train", "absent.yaml"},
      folder_,
      {{"TORCHELASTIC_ERROR_FILE", folder_ / "error.json"}});
  EXPECT_EQ(run.wait(), 2);
  std::ifstream file(folder_ / "error.json");
  const auto message = nlohmann::json::parse(file).at("message");
  EXPECT_EQ(message.at("errorCode"), 2);
  EXPECT_THAT(
      run.last_error_line(),
      HasSubstr(message.at("message").get<std::string>()));
  const auto& extra = message.at("extraInfo");
  const std::string time = extra.at("timestamp");
  const std::string time_ns = extra.at("timestamp_ns");
  EXPECT_EQ(time_ns.size(), time.size() + 9);
  EXPECT_THAT(time_ns, StartsWith(time));
}

} // namespace
} // namespace weft::test
