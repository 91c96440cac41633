#include "train/report/metrics_series.h"

#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string line(int64_t step, double loss, double peak = 100) {
  return fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":1,"lr":0.1,"tokens":{},)"
      R"("tokens_per_s":10,"step_ms":100,"data_ms":10,"comm_ms":30,)"
      R"("checkpoint_ms":0,"peak_rss_mb":{}}})"
      "\n",
      step,
      loss,
      step * 8,
      peak);
}

MetricsSeries read_lines(
    const std::string& text,
    size_t max_points = MetricsSeries::kMaxPoints) {
  const fixtures::TempFolder folder;
  return MetricsSeries::read(folder.write("m.jsonl", text), max_points);
}

TEST(MetricsSeries, FewStepsAreAPointEach) {
  const auto series = read_lines(line(1, 3) + line(2, 2));
  ASSERT_EQ(series.points.size(), 2U);
  EXPECT_EQ(series.steps_per_point, 1);
  EXPECT_EQ(series.lines, 2);
  EXPECT_EQ(series.last_loss, 2);
  EXPECT_EQ(series.points[1].first_step, 2);
  EXPECT_EQ(series.points[1].last_step, 2);
  EXPECT_EQ(series.points[1].tokens, 16);
  EXPECT_DOUBLE_EQ(series.points[1].time_s, 0.2);
  EXPECT_EQ(series.points[0]["loss"].mean(), 3);
  EXPECT_EQ(series.points[0]["compute_ms"].mean(), 60) << "100 - 10 - 30";
  EXPECT_THAT(series.notes, ElementsAre());
  EXPECT_THAT(series.restarts, ElementsAre());
}

TEST(MetricsSeries, ManyStepsArePutTogetherAndSpikesStay) {
  constexpr int64_t kSteps = 10'001;
  std::string text;
  for (int64_t step = 1; step <= kSteps; ++step) {
    text += line(step, step == 7'777 ? 99 : step == 1'234 ? -5 : 2);
  }
  const auto series = read_lines(text, 100);
  EXPECT_LE(series.points.size(), 100U);
  EXPECT_GE(series.points.size(), 50U);
  EXPECT_EQ(series.lines, kSteps);
  ValueRange all;
  int64_t expected_first = 1;
  for (const auto& point : series.points) {
    EXPECT_EQ(point.first_step, expected_first);
    EXPECT_EQ(point.last_step - point.first_step + 1, point["loss"].count);
    EXPECT_LE(point["loss"].count, series.steps_per_point);
    const bool has_spike =
        point.first_step <= 7'777 && 7'777 <= point.last_step;
    EXPECT_EQ(point["loss"].most, has_spike ? 99 : 2);
    all.add(point["loss"]);
    expected_first = point.last_step + 1;
  }
  EXPECT_EQ(expected_first, kSteps + 1);
  EXPECT_EQ(all.count, kSteps);
  EXPECT_EQ(all.least, -5);
  EXPECT_EQ(all.sum, 2.0 * (kSteps - 2) + 99 - 5);
}

TEST(MetricsSeries, EmptyAndOneLine) {
  const auto empty = read_lines("");
  EXPECT_TRUE(empty.points.empty());
  EXPECT_TRUE(std::isnan(empty.last_loss));
  EXPECT_THAT(empty.notes, ElementsAre());
  EXPECT_EQ(read_lines(line(1, 2)).points.size(), 1U);
  EXPECT_EQ(read_lines("\n\n").lines, 0);
}

TEST(MetricsSeries, ALastLineThatIsCutOffIsLeftOut) {
  const auto whole = line(1, 3) + line(2, 2);
  for (size_t cut = 1; cut < line(2, 2).size() - 1; ++cut) {
    const auto series = read_lines(whole.substr(0, whole.size() - 1 - cut));
    ASSERT_EQ(series.lines, 1) << cut;
    ASSERT_THAT(
        series.notes,
        ElementsAre(HasSubstr("line 2 of metrics.jsonl ends in the middle")))
        << cut;
  }
  EXPECT_EQ(read_lines(whole.substr(0, whole.size() - 1)).lines, 2)
      << "all but the line end is there";
}

TEST(MetricsSeries, UnreadableLinesAreCountedAndLeftOut) {
  const std::string nul("\0\0\0", 3);
  const auto series = read_lines(
      line(1, 3) + "what\n" + "[1]\n" + R"({"step":"2"})" + "\n" + nul +
      "\n\xff\xfe\n" + std::string(200'000, '[') + "\n" + R"({"step":-1})" +
      "\n" + line(2, 2));
  EXPECT_EQ(series.lines, 2);
  EXPECT_THAT(
      series.notes,
      ElementsAre("7 lines of metrics.jsonl cannot be read and left out; the "
                  "first is line 2"));
}

TEST(MetricsSeries, WhatIsNotFiniteIsAGapWithANote) {
  const auto series = read_lines(
      line(1, 3) + R"({"step":2,"loss":null,"step_ms":null,"eval_loss":null})" +
      "\n" + R"({"step":3,"loss":null})" + "\n");
  EXPECT_EQ(series.points.at(1)["loss"].count, 0);
  EXPECT_TRUE(std::isnan(series.points.at(1)["loss"].mean()));
  EXPECT_EQ(series.last_loss, 3);
  EXPECT_TRUE(series.evals.empty());
  EXPECT_THAT(
      series.notes,
      ::testing::Contains(
          "loss is not a finite number in 2 steps, the first is step 2"));
  EXPECT_THAT(
      series.notes,
      ::testing::Contains(
          "eval_loss is not a finite number in 1 step, the first is step 2"));
}

TEST(MetricsSeries, EvaluationsHaveTheirStep) {
  std::string second = line(2, 2);
  second.replace(second.find("}"), 1, R"(,"eval_loss":2.5})");
  const auto series = read_lines(line(1, 3) + second);
  ASSERT_EQ(series.evals.size(), 1U);
  EXPECT_EQ(series.evals[0].step, 2);
  EXPECT_EQ(series.evals[0].tokens, 16);
  EXPECT_EQ(series.evals[0].loss, 2.5);
}

TEST(MetricsSeries, StepsThatRanAgainReplaceTheFirstTime) {
  const auto series = read_lines(
      line(1, 3) + line(2, 9) + line(3, 9) + line(2, 2) + line(3, 1));
  ASSERT_EQ(series.points.size(), 3U);
  EXPECT_EQ(series.points[1]["loss"].mean(), 2);
  EXPECT_EQ(series.points[2]["loss"].mean(), 1);
  EXPECT_DOUBLE_EQ(series.points[2].time_s, 0.5) << "all five took time";
  EXPECT_THAT(series.restarts, ElementsAre(2));
  EXPECT_THAT(
      series.notes,
      ElementsAre("2 steps ran more than once: the last time counts"));
}

TEST(MetricsSeries, AFallOfThePeakOfMemoryIsARestart) {
  const auto series = read_lines(
      line(1, 3, 100) + line(2, 3, 120) + line(3, 3, 90) + line(4, 3, 95) +
      line(5, 3, 60));
  EXPECT_THAT(series.restarts, ElementsAre(3, 5));
  EXPECT_THAT(series.notes, ElementsAre());
}

TEST(MetricsSeries, NamesAFileThatIsMissing) {
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [] { MetricsSeries::read("/nowhere/metrics.jsonl"); }),
      HasSubstr("cannot read \"/nowhere/metrics.jsonl\": No such file"));
}

} // namespace
} // namespace weft::train
