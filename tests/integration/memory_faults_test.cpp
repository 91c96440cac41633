// An allocation that fails, and gloo's abort: what the launcher makes of them.

#include <optional>
#include <random>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/for_each_processor.h"
#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// By hand: WEFT_FAULT_ROUNDS=200 build/bin/process_test ...
int rounds(int few) {
  const char* wanted = std::getenv("WEFT_FAULT_ROUNDS");
  return wanted == nullptr ? few : std::atoi(wanted);
}

/// Three parts of libtorch do not pass on that they have no memory: oneDNN
/// crashes, or reports an error of its own; the parser of op schemas reads from
/// a stream that ends early; and an op that is registered in part aborts when
/// its library is destroyed.
bool is_failure_of_libtorch(std::optional<int> code, Process& run) {
  const auto line = run.last_error_line();
  const auto has = [&](std::string_view text) {
    return line.find(text) != std::string::npos;
  };
  if (code == 139) {
    return run.error().find("dnnl::") != std::string::npos;
  }
  if (code == 134) {
    return has("INTERNAL ASSERT FAILED") && has("dispatch/OperatorEntry.cpp");
  }
  return code == 1 &&
         (line.starts_with("ERROR 1 rank=1 op=train could not create ") ||
          has(" here: aten::"));
}

class FailedAllocation : public ProcessTest {
 protected:
  /// The run in which rank 1's allocation number `fail_at` fails; 0: none does,
  /// and they are counted.
  Words run(long fail_at) const {
    // The loader takes no path with a space in it.
    const auto library = folder_ / "fail_allocation.so";
    if (!fs::exists(library)) {
      fs::create_symlink(WEFT_FAIL_ALLOCATION, library);
    }
    const std::string script =
        std::string(
            "if [ \"$RANK\" = 1 ]; then export "
            "LD_PRELOAD=./fail_allocation.so ") +
        (fail_at == 0 ? "WEFT_COUNT_FILE=count"
                      : "WEFT_FAIL_AT=" + std::to_string(fail_at)) +
        "; fi; exec \"" WEFT_WEFT
        "\" train tiny.yaml checkpoint.every=2 eval.every=0";
    return launched(2, {"sh", "-c", script});
  }

  /// Whatever was saved is whole, and training resumes from there to its end.
  void expect_no_half_state(long fail_at) {
    const fs::path saved = folder_ / "outputs/tiny/checkpoints";
    if (fs::exists(saved)) {
      for (const auto& step : fs::directory_iterator(saved)) {
        if (step.path().filename().string().starts_with("step-")) {
          Process verify(
              {WEFT_WEFT, "checkpoint", "verify", step.path()}, folder_);
          EXPECT_EQ(verify.wait(), 0) << fail_at << ": " << verify.error();
        }
      }
    }
    Process again(
        launched(2, train({"checkpoint.every=2", "eval.every=0"})), folder_);
    EXPECT_EQ(again.wait(), 0) << fail_at << ": " << again.error();
    EXPECT_EQ(metrics().size(), 6U) << fail_at;
    fs::remove_all(folder_ / "outputs");
  }
};

TEST_F(FailedAllocation, ReportsOutOfMemoryAndLeavesNoPartialSave) {
#ifdef WEFT_IS_SANITIZED
  GTEST_SKIP() << "sanitizers have allocations of their own";
#endif
  Process counted(run(0), folder_);
  ASSERT_EQ(counted.wait(), 0) << counted.error();
  const auto last = losses(metrics());
  const long all = std::stol(test::read_text(folder_ / "count"));
  ASSERT_GT(all, 10000);
  fs::remove_all(folder_ / "outputs");
  std::mt19937_64 dice(14);
  std::uniform_int_distribution<long> any(1, all);
  int survived = 0;
  int of_libtorch = 0;
  const int tries = rounds(4);
  for (int i = 0; i < tries; ++i) {
    const long fail_at = any(dice);
    Process failed(run(fail_at), folder_);
    const auto code = failed.wait();
    if (code == 0) { // it could do without
      ++survived;
      EXPECT_EQ(losses(metrics()), last) << fail_at;
    } else if (is_failure_of_libtorch(code, failed)) {
      ++of_libtorch;
    } else {
      EXPECT_EQ(code, 137) << fail_at << " of " << all << ": "
                           << failed.error();
      EXPECT_THAT(failed.last_error_line(), StartsWith("ERROR 137 rank=1 op="))
          << fail_at;
    }
    expect_no_half_state(fail_at);
  }
  std::printf(
      "%d of %d runs did without the memory, in %d it was libtorch's\n",
      survived,
      tries,
      of_libtorch);
}

using GlooAbort = ProcessTest;

TEST_F(GlooAbort, IsTheCauseAndNotWhatThePeerSees) {
  for (int i = 0; i < rounds(3); ++i) {
    Process run(launched(2, {WEFT_GLOO_ABORT}), folder_);
    EXPECT_EQ(run.wait(), 134) << run.error();
    EXPECT_THAT(
        run.last_error_line(),
        AllOf(
            StartsWith("ERROR 134 rank="),
            HasSubstr("SIGABRT by an uncaught gloo::EnforceNotMet")));
    // The other one was told of nothing but a lost connection.
    const auto cause = run.error().find("<- first cause");
    ASSERT_NE(cause, std::string::npos) << run.error();
    const auto line = run.error().rfind('\n', cause) + 1;
    EXPECT_THAT(
        run.error().substr(line, cause - line),
        HasSubstr("signal 6 (SIGABRT)"));
    EXPECT_EQ(run.error().find("<- first cause", cause + 1), std::string::npos);
  }
}

} // namespace
} // namespace weft::test
