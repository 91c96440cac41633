// SIGUSR2 asks a running weft for its stacks.

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using StackSignalCommand = ProcessTest;

TEST_F(StackSignalCommand, ShowsWhereEachRankIsAndChangesNothing) {
  const Words words = train({"train.steps=100", "eval.every=0", "mesh.tp=2"});
  expect_success(launched(2, words));
  const auto undisturbed = losses(metrics());
  ASSERT_GT(undisturbed.size(), 99U);
  fs::remove_all(folder_ / "outputs");
  Process run(launched(2, words), folder_);
  ASSERT_NO_FATAL_FAILURE(wait_for_steps(run));
  const auto workers = workers_of(run.pid());
  ASSERT_EQ(workers.size(), 2U);
  for (int i = 0; i < 20; ++i) {
    for (const auto& [rank, worker] : workers) {
      kill(worker.pid(), SIGUSR2);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(losses(metrics()), undisturbed);
  for (const char* rank : {"rank=0 ", "rank=1 "}) {
    EXPECT_THAT(
        run.error(),
        AllOf(
            HasSubstr(rank + std::string("stacks of ")),
            HasSubstr(rank + std::string("thread "))));
  }
  EXPECT_THAT(
      run.error(),
      AllOf(
          HasSubstr(" threads, last collective "),
          HasSubstr("weft::train::"),
          HasSubstr(" in weft\n")));
}

} // namespace
} // namespace weft::test
