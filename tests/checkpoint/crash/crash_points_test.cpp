// A seeded few of the faults of bench/crash_points.py: one of 2x2 ranks is
// killed at, or refused, a system call of a save.

#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/sample.h"
#include "tests/integration/process.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

using Json = nlohmann::json;

constexpr int kKills = 10;
constexpr int kErrors = 6;

class CrashPoints : public ::testing::Test {
 protected:
  std::vector<Json> run(const std::vector<Json>& points) {
    const auto input = scratch_.path() / "points";
    std::ofstream file(input);
    for (const auto& point : points) {
      file << point.dump() << "\n";
    }
    file.close();
    Process worker({WEFT_CRASH_WORKER, input.string()}, scratch_.path());
    EXPECT_EQ(worker.wait(std::chrono::seconds(110)), 0) << worker.error();
    std::vector<Json> results;
    for (const auto& line : lines_of(worker.output())) {
      results.push_back(Json::parse(line));
    }
    EXPECT_EQ(results.size(), points.size()) << worker.error();
    return results;
  }

  Json point(int rank, bool is_async) {
    return {
        {"folder", (scratch_.path() / std::to_string(count_++)).string()},
        {"rank", rank},
        {"async", is_async}};
  }

  test::TempFolder scratch_;
  int count_ = 0;
};

bool changes_files(const Json& call) {
  return call.at("call") != "close" &&
         (call.at("creates") == true ||
          !call.at("call").get<std::string>().starts_with("open"));
}

std::vector<Json> changing_calls(const Json& listed) {
  std::vector<Json> calls;
  for (const auto& call : listed.at("calls")) {
    if (changes_files(call)) {
      calls.push_back(call);
    }
  }
  return calls;
}

TEST_F(CrashPoints, AFaultLosesAndMixesNothing) {
  // The first rank, which commits and deletes, and one that only writes.
  const std::vector<Json> saves = {
      point(0, false), point(0, true), point(3, true)};
  const auto listed = run(saves);
  ASSERT_EQ(listed.size(), saves.size());
  std::mt19937 random(12);
  std::vector<Json> points;
  for (int i = 0; i < kKills + kErrors; ++i) {
    const auto& seen = listed[i % saves.size()];
    if (seen.contains("skip")) {
      GTEST_SKIP() << seen["skip"];
    }
    ASSERT_EQ(seen.at("problems"), Json::array()) << seen;
    const auto calls = changing_calls(seen);
    ASSERT_GT(calls.size(), 3) << seen;
    const auto& call = calls[random() % calls.size()];
    const auto& save = saves[i % saves.size()];
    auto fault = point(save.at("rank"), save.at("async"));
    fault["call"] = call.at("call");
    fault["fault"] = i < kKills   ? "signal=KILL"
                     : i % 2 == 0 ? "error=ENOSPC"
                                  : "error=EIO";
    fault["fault"] = fault["fault"].get<std::string>() +
                     ":when=" + std::to_string(call.at("when").get<int>());
    points.push_back(fault);
  }
  const auto results = run(points);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].value("problems", Json("none told")), Json::array())
        << points[i] << "\n"
        << results[i];
  }
}

// Calls that are hard to get right: a folder that only others could make; the
// name of the step that may not last; `latest`; what is deleted.
TEST_F(CrashPoints, EachRefusalEndsAsItMust) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"mkdir", "ENOSPC:when=1", "refused"},
      {"fsync", "EIO:when=2", "refused"},
      {"renameat2", "EIO:when=1", "refused"},
      {"renameat", "EIO:when=1", "saved"},
      {"renameat2", "EIO:when=2", "saved"},
      {"unlinkat", "EIO:when=2", "saved"}};
  std::vector<Json> points;
  for (const auto& [call, fault, outcome] : cases) {
    points.push_back(point(0, false));
    points.back()["call"] = call;
    points.back()["fault"] = "error=" + fault;
  }
  const auto results = run(points);
  ASSERT_EQ(results.size(), cases.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].contains("skip")) {
      GTEST_SKIP() << results[i]["skip"];
    }
    EXPECT_EQ(results[i].value("problems", Json("none told")), Json::array())
        << results[i];
    EXPECT_EQ(results[i].value("outcome", ""), cases[i][2]) << results[i];
  }
}

TEST_F(CrashPoints, ShortAndInterruptedWritesAreContinued) {
  auto short_writes = point(-1, false);
  short_writes["most_bytes"] = 700;
  auto in_background = point(-1, true);
  in_background["most_bytes"] = 4097;
  for (const auto& result : run({short_writes, in_background})) {
    EXPECT_EQ(result.value("problems", Json("none told")), Json::array());
    EXPECT_EQ(result.value("outcome", ""), "saved");
  }
}

} // namespace
} // namespace weft::test
