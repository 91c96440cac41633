#include "checkpoint/save/rank_report.h"

#include <gtest/gtest.h>

namespace weft::checkpoint {
namespace {

RankReport report_of(double seconds, int64_t bytes) {
  RankReport report;
  report.seconds = seconds;
  if (bytes > 0) {
    report.files.push_back({.name = "x", .record = {}, .chunks = {}});
    report.files.back().record.bytes = bytes;
  }
  return report;
}

TEST(SlowWriter, IsNamedWithItsTimeAndTheOthers) {
  EXPECT_EQ(
      describe_slow_writer(
          {report_of(0.31, 100), report_of(0.3, 100), report_of(1.2, 100)}),
      "rank 2 is slow: it wrote its part of the checkpoint in 1.20 s, the "
      "others in 0.31 s");
  EXPECT_EQ(
      describe_slow_writer({report_of(2, 100), report_of(0.5, 100)}),
      "rank 0 is slow: it wrote its part of the checkpoint in 2.00 s, the "
      "others in 0.50 s");
}

TEST(SlowWriter, IsNotWhoHasMoreToWriteOrWroteInNoTime) {
  EXPECT_EQ(describe_slow_writer({report_of(1, 100), report_of(4, 400)}), "");
  EXPECT_EQ(
      describe_slow_writer({report_of(0.01, 100), report_of(0.1, 100)}), "");
  EXPECT_EQ(describe_slow_writer({report_of(1, 100), report_of(1.6, 100)}), "");
  EXPECT_EQ(describe_slow_writer({report_of(3, 100), report_of(0, 0)}), "");
  EXPECT_EQ(describe_slow_writer({report_of(0, 0)}), "");
}

TEST(RankReports, SurviveAsBytes) {
  const auto bytes = to_bytes(report_of(0.25, 100), {});
  EXPECT_EQ(report_from_bytes(bytes, {}, 0).seconds, 0.25);
}

} // namespace
} // namespace weft::checkpoint
