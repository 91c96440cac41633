// What a run leaves to look at.

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ObservabilityTest : public ProcessTest {
 protected:
  std::string text(const std::string& name) const {
    return test::read_text(folder_ / name);
  }

  size_t event_files() const {
    const auto folder = folder_ / "outputs/tiny/tensorboard";
    return std::distance(
        fs::directory_iterator(folder), fs::directory_iterator());
  }
};

TEST_F(ObservabilityTest, ARunLeavesAReportATraceAndEvents) {
  const Words command = launched(
      2,
      train(
          {"mesh.tp=2",
           "trace={first_step: 2, steps: 2}",
           "log.tensorboard=true"}));
  expect_success(command);
  const auto page = text("outputs/tiny/report.html");
  EXPECT_THAT(page, HasSubstr("<title>tiny - weft</title>"));
  EXPECT_THAT(page, HasSubstr("\"steps\":6"));
  const auto layout = nlohmann::json::parse(text("outputs/tiny/layout.json"));
  EXPECT_EQ(layout.at("shape"), nlohmann::json::parse("[1,2]"));
  EXPECT_GT(layout.at("bytes").at(0), 0);

  const auto trace = nlohmann::json::parse(text("outputs/tiny/trace.json"));
  std::map<int, std::set<std::string>> names;
  for (const auto& event : trace.at("traceEvents")) {
    names[event.at("pid")].insert(event.at("name"));
  }
  ASSERT_EQ(names.size(), 2U) << "a process a rank";
  for (const auto& [rank, own] : names) {
    for (const auto* name :
         {"step 2",
          "step 3",
          "data",
          "forward",
          "backward",
          "clip",
          "optimizer",
          "model.layers.0.mlp",
          "all_gather model.layers.0.mlp.gate_proj.weight"}) {
      EXPECT_TRUE(own.contains(name)) << name << " of rank " << rank;
    }
  }
  EXPECT_EQ(event_files(), 1U);
}

TEST_F(ObservabilityTest, NothingIsTracedUnlessItIsAskedFor) {
  expect_success(train({"train.steps=2"}));
  EXPECT_TRUE(fs::exists(folder_ / "outputs/tiny/report.html"));
  EXPECT_FALSE(fs::exists(folder_ / "outputs/tiny/trace.json"));
  EXPECT_FALSE(fs::exists(folder_ / "outputs/tiny/tensorboard"));
}

TEST_F(ObservabilityTest, ReportDrawsOneRunOrSeveral) {
  for (const auto* name : {"a", "b"}) {
    fs::create_directories(folder_ / name);
    write(std::string(name) + "/metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  }
  Process one({WEFT_WEFT, "report", "a"}, folder_);
  EXPECT_EQ(one.wait(), 0) << one.error();
  EXPECT_EQ(one.output(), "a/report.html\n");
  Process both({WEFT_WEFT, "report", "a", "b"}, folder_);
  EXPECT_EQ(both.wait(), 0) << both.error();
  EXPECT_EQ(both.output(), "report.html\n");
  EXPECT_THAT(text("report.html"), HasSubstr("<title>2 runs - weft</title>"));
  Process named({WEFT_WEFT, "report", "a", "-o", "c.html"}, folder_);
  EXPECT_EQ(named.wait(), 0) << named.error();
  EXPECT_TRUE(fs::exists(folder_ / "c.html"));
}

TEST_F(ObservabilityTest, ReportNamesWhatIsNoRun) {
  for (const Words& words : {Words{"no"}, Words{"tiny.yaml"}, Words{"."}}) {
    Process run({WEFT_WEFT, "report", words[0]}, folder_);
    EXPECT_EQ(run.wait(), 2);
    EXPECT_THAT(
        run.last_error_line(),
        StartsWith("ERROR 2 rank=0 op=report " + words[0] + ": "));
  }
  EXPECT_FALSE(fs::exists(folder_ / "report.html"));
}

} // namespace
} // namespace weft::test
