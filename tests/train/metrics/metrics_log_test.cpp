#include "train/metrics/metrics_log.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

StepMetrics some_metrics() {
  return {
      .step = 7,
      .loss = 1.0 / 3.0,
      .grad_norm = 1e-17,
      .lr = 0.1,
      .tokens = int64_t{1} << 60,
      .tokens_per_s = 12345.678,
      .step_ms = 1.5,
      .data_ms = 0.25,
      .comm_ms = 0.125,
      .checkpoint_ms = 0,
      .peak_rss_mb = 300.5};
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream text(fixtures::read_text(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(MetricsLog, LinesReadBackExactly) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "outputs/run/metrics.jsonl";
  MetricsLog log(path);
  log.write(some_metrics());
  ASSERT_EQ(lines_of(path).size(), 1U) << "written before the log closes";
  StepMetrics evaluated = some_metrics();
  evaluated.step = 8;
  evaluated.eval_loss = 2.0 / 3.0;
  evaluated.ema_eval_loss = 0.75;
  log.write(evaluated);

  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(
      lines[0],
      ::testing::StartsWith("{\"step\":7,\"loss\":0.3333333333333333,"));
  const auto first = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(first.size(), 11U);
  EXPECT_EQ(first["step"], 7);
  EXPECT_EQ(first["loss"].get<double>(), 1.0 / 3.0);
  EXPECT_EQ(first["grad_norm"].get<double>(), 1e-17);
  EXPECT_EQ(first["lr"].get<double>(), 0.1);
  EXPECT_EQ(first["tokens"].get<int64_t>(), int64_t{1} << 60);
  EXPECT_EQ(first["tokens_per_s"].get<double>(), 12345.678);
  EXPECT_EQ(first["step_ms"].get<double>(), 1.5);
  EXPECT_EQ(first["data_ms"].get<double>(), 0.25);
  EXPECT_EQ(first["comm_ms"].get<double>(), 0.125);
  EXPECT_EQ(first["checkpoint_ms"].get<double>(), 0);
  EXPECT_EQ(first["peak_rss_mb"].get<double>(), 300.5);
  EXPECT_FALSE(first.contains("eval_loss"));
  const auto second = nlohmann::json::parse(lines[1]);
  EXPECT_EQ(second["eval_loss"].get<double>(), 2.0 / 3.0);
  EXPECT_EQ(second["ema_eval_loss"].get<double>(), 0.75);
}

TEST(MetricsLog, NonFiniteIsNull) {
  const fixtures::TempFolder folder;
  MetricsLog log(folder / "m.jsonl");
  StepMetrics metrics = some_metrics();
  metrics.loss = std::nan("");
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  log.write(metrics);
  const auto line = nlohmann::json::parse(lines_of(folder / "m.jsonl").at(0));
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_TRUE(line["grad_norm"].is_null());
}

TEST(MetricsLog, AnEvaluationIsAddedToTheLineThatLacksIt) {
  StepMetrics metrics{.step = 3, .loss = 1.5, .skipped = true};
  EXPECT_FALSE(lacks_evaluation(metrics_line(metrics)));
  metrics.eval_interrupted = true;
  const auto line = metrics_line(metrics);
  EXPECT_TRUE(lacks_evaluation(line));
  EXPECT_FALSE(lacks_evaluation("")) << "of a folder without one";
  const auto whole = nlohmann::json::parse(with_evaluation(line, 0.25, 0.5));
  EXPECT_FALSE(whole.contains("eval_interrupted"));
  EXPECT_EQ(whole["eval_loss"], 0.25);
  EXPECT_EQ(whole["ema_eval_loss"], 0.5);
  EXPECT_EQ(whole["skipped"], true);
  EXPECT_EQ(whole["step"], 3);
}

TEST(MetricsLog, StartsOver) {
  const fixtures::TempFolder folder;
  const std::string path = folder.write("m.jsonl", "old\n");
  MetricsLog log(path);
  EXPECT_EQ(fixtures::read_text(path), "");
}

TEST(MetricsLog, NamesWhatItCannotWrite) {
  const fixtures::TempFolder folder;
  const std::string file = folder.write("file", "x");
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { MetricsLog(file + "/m.jsonl"); }),
      HasSubstr("output_dir: cannot write \"" + file + "/m.jsonl\": "));
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { MetricsLog log(folder.path()); }),
      HasSubstr("Is a directory"));
}

// What a killed run left: lines after its last checkpoint, and half a line.
TEST(MetricsLog, LinesAfterTheResumedStepAreCut) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const auto write_steps = [&](int64_t first, int64_t last) {
    MetricsLog log(path, first - 1);
    for (int64_t step = first; step <= last; ++step) {
      auto metrics = some_metrics();
      metrics.step = step;
      log.write(metrics);
    }
  };
  write_steps(1, 5);
  std::ofstream(path, std::ios::app) << R"({"step":6,"lo)";
  EXPECT_EQ(MetricsLog(path, 3).last_step(), 3);
  EXPECT_EQ(lines_of(path).size(), 3U);
  write_steps(4, 6);
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 6U);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(nlohmann::json::parse(lines[i])["step"], i + 1);
  }
  EXPECT_EQ(MetricsLog(path, 0).last_step(), 0);
  EXPECT_TRUE(lines_of(path).empty()) << "a new run starts over";
}

std::string line_of_step(int64_t step) {
  auto metrics = some_metrics();
  metrics.step = step;
  return metrics_line(metrics);
}

// A bad sector, an editor, another program: the history around it stays.
TEST(MetricsLog, LinesThatCannotBeReadCostNoOthers) {
  const fixtures::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  for (const auto& bad :
       {std::string("no JSON"),
        std::string("{}"),
        std::string(),
        std::string(3, '\0'),
        line_of_step(900),
        line_of_step(1)}) {
    std::string before;
    for (int64_t step = 1; step <= 6; ++step) {
      before += (step == 3 ? bad : line_of_step(step)) + "\n";
    }
    folder.write("metrics.jsonl", before + line_of_step(7) + "\n{\"step\":8");
    const MetricsLog log(path, 6);
    EXPECT_EQ(fixtures::read_text(path), before) << bad;
    EXPECT_EQ(log.last_step(), 6) << bad;
    EXPECT_THAT(
        log.notice(), AllOf(HasSubstr("1 line of"), HasSubstr("line 3")));
  }
  // The last one: its step is written again.
  folder.write(
      "metrics.jsonl", line_of_step(1) + "\n" + line_of_step(2) + "\nx\n");
  const MetricsLog log(path, 3);
  EXPECT_EQ(log.last_step(), 2);
  EXPECT_EQ(log.notice(), "");
  EXPECT_EQ(lines_of(path).size(), 2U);
}

TEST(MetricsLog, AFullDiskIsToldOnceAndWaitedFor) {
  MetricsLog log("/dev/full");
  EXPECT_THAT(
      log.write(some_metrics()),
      HasSubstr("cannot write \"/dev/full\": No space left"));
  EXPECT_EQ(log.write(some_metrics()), "");
  EXPECT_THAT(
      log.finish(),
      HasSubstr("bytes could not be written and are lost: No space left"));
}

TEST(PeakRss, HoldsWhatWasTouched) {
  const std::vector<char> block(64 << 20, 1);
  EXPECT_GE(peak_rss_mb(), 64.0 * block[12345]);
  EXPECT_LT(peak_rss_mb(), 1e6);
}

} // namespace
} // namespace weft::train
