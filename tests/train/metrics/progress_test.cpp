#include "train/metrics/progress.h"

#include <cstdlib>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics metrics_at(int64_t step) {
  return {
      .step = step,
      .loss = 3.21014,
      .grad_norm = 1.018,
      .lr = 5e-4,
      .tokens_per_s = 12345.4,
      .step_ms = 500};
}

// What a Progress with these options writes.
template <class Body>
std::string written(Progress::Options options, Body&& body) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  {
    Progress progress(out, options);
    body(progress);
  }
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(Progress, WritesPlainLinesInAFile) {
  const std::string text =
      written({.total_steps = 25, .log_every = 10}, [](Progress& progress) {
        for (int64_t step = 1; step <= 25; ++step) {
          progress.step_done(metrics_at(step));
          if (step == 20) {
            progress.eval_done({.step = step, .eval_loss = 2.5});
            progress.eval_done(
                {.step = step, .eval_loss = 2.5, .ema_eval_loss = 2.25});
          }
        }
      });
  const std::string rest =
      "  loss 3.2101  grad_norm 1.02  lr 5.0e-04  12345 tokens/s\n";
  EXPECT_EQ(
      text,
      "step 1/25" + rest + "step 10/25" + rest + "step 20/25" + rest +
          "step 20/25  eval_loss 2.5000\n" +
          "step 20/25  eval_loss 2.5000  ema_eval_loss 2.2500\n" +
          "step 25/25" + rest);
}

TEST(Progress, RedrawsOneLineOnATerminal) {
  const std::string text = written(
      {.total_steps = 2, .is_terminal = true, .columns = 100},
      [](Progress& progress) {
        progress.message("hello");
        progress.step_done(metrics_at(1));
        progress.eval_done({.step = 1, .eval_loss = 2.5});
        progress.step_done(metrics_at(2));
      });
  const std::string half =
      "[####################....................] 1/2  loss 3.2101  12345 "
      "tokens/s  ETA 0:01";
  const std::string full =
      "[########################################] 2/2  loss 3.2101  12345 "
      "tokens/s  ETA 0:00";
  EXPECT_EQ(
      text,
      "hello\n" + half + "\r\x1b[Kstep 1/2  eval_loss 2.5000\n" + half +
          "\r\x1b[K" + full + "\n");
}

TEST(Progress, NeverRunsOverTheTerminalsWidth) {
  for (int64_t columns = 1; columns < 120; ++columns) {
    const std::string line = bar_line(metrics_at(100), 200, 1e6, columns);
    EXPECT_LE(static_cast<int64_t>(line.size()), columns);
    EXPECT_FALSE(line.empty());
  }
  EXPECT_THAT(bar_line(metrics_at(1), 200, 0, 25), HasSubstr("loss 3.2101"));
  EXPECT_THAT(bar_line(metrics_at(1), 200, 0, 25), Not(HasSubstr("tokens/s")));
}

TEST(Progress, ShowsTimeToGo) {
  const auto eta = [](double ms) {
    const std::string line = bar_line(metrics_at(1), 200, ms, 200);
    return line.substr(line.find("ETA "));
  };
  EXPECT_EQ(eta(0), "ETA 0:00");
  EXPECT_EQ(eta(59'400), "ETA 0:59");
  EXPECT_EQ(eta(61'000), "ETA 1:01");
  EXPECT_EQ(eta(3'600'000.0 * 25 + 62'000), "ETA 25:01:02");
  EXPECT_EQ(eta(std::numeric_limits<double>::infinity()), "ETA --:--");
  EXPECT_EQ(eta(std::numeric_limits<double>::quiet_NaN()), "ETA --:--");
}

} // namespace
} // namespace weft::train
