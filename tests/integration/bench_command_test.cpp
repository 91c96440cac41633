// The measuring commands, on sizes too small to measure anything.

#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Words bench(const Words& arguments) {
  Words words{WEFT_WEFT, "bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

class BenchCommandTest : public ProcessTest {
 protected:
  /// The one line of JSON of a run on two ranks.
  nlohmann::json result_of(const Words& arguments) const {
    Process run(launched(2, bench(arguments)), folder_);
    EXPECT_EQ(run.wait(), 0) << run.error();
    EXPECT_EQ(run.error(), "");
    const auto lines = lines_of(run.output());
    EXPECT_EQ(lines.size(), 1U) << run.output();
    return nlohmann::json::parse(run.output(), nullptr, false);
  }
};

TEST_F(BenchCommandTest, CollectiveTimesEveryOpAtEverySize) {
  const auto result =
      result_of({"collective", "--json", "--sizes=1KB,8KB", "--rounds=2"});
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result.at("bench"), "collective");
  EXPECT_EQ(result.at("ranks"), 2);
  std::map<std::string, std::vector<int>> sizes;
  for (const auto& row : result.at("results")) {
    SCOPED_TRACE(row.dump());
    sizes[row.at("op")].push_back(row.at("bytes"));
    for (const std::string transport : {"gloo", "shm"}) {
      EXPECT_GT(row.at(transport + "_min_us"), 0);
      EXPECT_LE(row.at(transport + "_min_us"), row.at(transport + "_us"));
      EXPECT_LE(row.at(transport + "_us"), row.at(transport + "_max_us"));
    }
    EXPECT_GT(row.at("ratio"), 0);
  }
  const std::vector<int> both{1024, 8192};
  const std::map<std::string, std::vector<int>> expected{
      {"all_reduce", both},
      {"all_gather", both},
      {"reduce_scatter", both},
      {"all_to_all", both},
      {"broadcast", both},
      {"barrier", {0}}};
  EXPECT_EQ(sizes, expected);
}

TEST_F(BenchCommandTest, CollectiveNeedsRanks) {
  Process run(bench({"collective"}), folder_);
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), StartsWith("ERROR 2 rank=0 op=bench "));
  EXPECT_THAT(run.last_error_line(), HasSubstr("weftrun --nproc-per-node=2"));
}

TEST_F(BenchCommandTest, ReducerTimesBothBackwardsOfEveryWidth) {
  const auto result = result_of(
      {"reducer",
       "--json",
       "--widths=4,8",
       "--layers=3",
       "--rounds=2",
       "--warmup=1"});
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result.at("dp"), 2);
  EXPECT_EQ(result.at("parameters"), 6);
  for (const std::string width : {"w4", "w8"}) {
    for (const char* what : {"_plain_ms", "_ddp_ms", "_ratio"}) {
      EXPECT_GT(result.at(width + what), 0) << width << what;
    }
  }
}

TEST_F(BenchCommandTest, StepComparesOverlapsWithinOneRun) {
  const std::vector<std::string> flags{
      "step",
      "--dp=1",
      "--tp=2",
      "--dim=32",
      "--layers=1",
      "--seq=16",
      "--warmup=1",
      "--async_tp=2"};
  auto six = flags;
  six.emplace_back("--steps=6");
  const auto result = result_of(six);
  ASSERT_TRUE(result.is_object());
  for (const std::string mode : {"off", "on", "auto"}) {
    EXPECT_GT(result.at("async_tp").at(mode).at("ms_per_step"), 0) << mode;
  }
  EXPECT_EQ(result.at("async_tp").at("off").at("over_off"), 1);
  auto five = flags;
  five.emplace_back("--steps=5");
  Process run(bench(five), folder_);
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("--steps 5"));
}

TEST_F(BenchCommandTest, StepIsProfiledAfterItIsTimed) {
  const auto step = [](const std::string& file) {
    return bench(
        {"step",
         "--dp=2",
         "--tp=1",
         "--dim=32",
         "--layers=1",
         "--seq=16",
         "--warmup=1",
         "--steps=2",
         "--profile=" + file});
  };
  const auto file = folder_ / "trace.json";
  Process run(launched(2, step(file.string())), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  std::ifstream stream(file);
  const auto trace = nlohmann::json::parse(stream, nullptr, false);
  ASSERT_TRUE(trace.is_object());
  int64_t updates = 0;
  for (const auto& event : trace.at("traceEvents")) {
    updates += event.value("name", "") == "aten::_fused_adamw_" ? 1 : 0;
  }
  // That of DTensors and that of their local tensors.
  EXPECT_EQ(updates, 2 * 3);

  const auto nowhere = (folder_ / "missing" / "trace.json").string();
  Process refused(launched(2, step(nowhere)), folder_);
  EXPECT_EQ(refused.wait(), 2);
  EXPECT_THAT(refused.error(), HasSubstr("--profile " + nowhere));
}

TEST_F(BenchCommandTest, CheckpointTimesWhatAlsoThePeerDoes) {
  const auto target = (folder_ / "state").string();
  const auto result = result_of({"checkpoint", target, "12", "--json"});
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result.at("mb"), 12);
  EXPECT_EQ(result.at("save_mb"), 12) << "each byte once";
  EXPECT_GE(result.at("load_mb"), 12);
  for (const char* time :
       {"save",
        "save_nosync",
        "load_same",
        "load_same_all_or_nothing",
        "load_reshard",
        "async_block_first",
        "async_block",
        "async_blocked",
        "async_total",
        "raw_write",
        "memcpy"}) {
    EXPECT_GT(result.at(std::string(time) + "_s"), 0) << time;
  }
  EXPECT_GE(result.at("async_staging_mb"), 6) << "half of the ranks' bytes";
  EXPECT_FALSE(std::filesystem::exists(target));
}

// Three replicas of a model that is split in two, of which one writes each
// part.
TEST_F(BenchCommandTest, SavePlanMergesEveryImaginedRanksReport) {
  const Words shape{
      "save_plan",
      "--ranks=6",
      "--dp=3",
      "--tp=2",
      "--layers=2",
      "--dim=64",
      "--ffn_dim=128",
      "--heads=4",
      "--kv_heads=2",
      "--vocab=96"};
  Process run(bench(shape), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  const auto result = nlohmann::json::parse(run.output());
  // Parameters: embeddings, head, last norm; per layer 2 norms and 7 matrices.
  constexpr int kParameters = 3 + 2 * 9;
  EXPECT_EQ(result.at("tensors"), 4 * kParameters);
  // Of a parameter and its two moments: matrices in two, norms whole; counts.
  EXPECT_EQ(result.at("chunks"), 3 * (2 * 16 + 5) + kParameters);
  EXPECT_GT(result.at("plan_first_s"), 0);
  EXPECT_GT(result.at("merge_s"), 0);

  auto wrong = shape;
  wrong[1] = "--ranks=7";
  Process refused(bench(wrong), folder_);
  EXPECT_EQ(refused.wait(), 2);
  EXPECT_THAT(refused.last_error_line(), HasSubstr("--ranks 7"));
}

TEST_F(BenchCommandTest, StartupSaysHowLongEachPhaseTook) {
  const auto result = result_of(
      {"startup", "--dp=1", "--tp=2", "--dim=32", "--layers=1", "--seq=16"});
  ASSERT_TRUE(result.is_object());
  double sum = 0;
  for (const char* phase :
       {"process", "rendezvous", "groups", "model", "first_step"}) {
    const double seconds = result.at("start_s").at(phase);
    EXPECT_GE(seconds, 0) << phase;
    sum += seconds;
  }
  EXPECT_EQ(result.at("start_s").size(), 5U);
  // Of five numbers in whole milliseconds.
  EXPECT_NEAR(sum, result.at("first_step_s"), 3e-3);
}

} // namespace
} // namespace weft::test
