// weft explain: what it prints, and how it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ExplainCommandTest : public ProcessTest {
 protected:
  struct Result {
    int code;
    std::string output;
    std::string error;
  };

  Result explain(const Words& arguments) const {
    Words words{WEFT_WEFT, "explain"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    Process run(words, folder_);
    const int code = run.wait().value_or(-1);
    return {code, run.output(), run.error()};
  }
};

TEST_F(ExplainCommandTest, PrintsMemoryAndCollectives) {
  const auto [code, output, error] =
      explain({"tiny.yaml", "mesh.tp=3", "--world-size", "6"});
  EXPECT_EQ(code, 0) << error;
  EXPECT_THAT(output, HasSubstr("6 ranks (dp=2 tp=3)"));
  EXPECT_THAT(output, HasSubstr("optimizer state"));
  EXPECT_THAT(output, HasSubstr("model.layers.*.mlp.gate_proj.weight"));
  EXPECT_THAT(output, HasSubstr("ddp bucket *"));
  EXPECT_THAT(error, IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ / "outputs")) << "nothing is started";
}

TEST_F(ExplainCommandTest, JsonIsOneLine) {
  const auto [code, output, error] =
      explain({"tiny.yaml", "mesh.dp=2", "mesh.tp=2", "--json"});
  EXPECT_EQ(code, 0) << error;
  ASSERT_EQ(lines_of(output).size(), 1U);
  const auto json = nlohmann::json::parse(output);
  EXPECT_EQ(json.at("world_size"), 4);
  EXPECT_GT(json.at("step").at("collectives"), 0);
}

TEST_F(ExplainCommandTest, ExitsWithOneOverBudget) {
  const Words tp2{"tiny.yaml", "mesh.dp=1", "mesh.tp=2"};
  const auto with = [&](const std::string& budget) {
    auto words = tp2;
    words.push_back("communication_budget." + budget);
    return explain(words);
  };
  const auto over = with("collectives_per_step=1");
  EXPECT_EQ(over.code, 1);
  EXPECT_THAT(
      over.error, HasSubstr("communication_budget.collectives_per_step=1"));
  EXPECT_THAT(over.output, HasSubstr("over budget: ")) << "and all the rest";
  EXPECT_EQ(with("mb_per_step=1e-3").code, 1);
  EXPECT_EQ(with("mb_per_step=1000").code, 0);
  EXPECT_EQ(with("implicit_collectives=0").code, 0)
      << "the plan asks for all it moves";
  EXPECT_EQ(with("collectives_per_step=0").code, 0) << "no limit";
}

TEST_F(ExplainCommandTest, ExitsWithTwoForWhatIsWrong) {
  const auto expect_usage = [&](const Words& words, const char* what) {
    const auto result = explain(words);
    EXPECT_EQ(result.code, 2) << what;
    EXPECT_THAT(result.error, HasSubstr(what));
    EXPECT_THAT(result.output, IsEmpty());
  };
  expect_usage({"missing.yaml"}, "missing.yaml");
  expect_usage({"tiny.yaml"}, "Give --world-size");
  expect_usage({"tiny.yaml", "--world-size", "0"}, "--world-size");
  expect_usage({"tiny.yaml", "--world-size", "x"}, "--world-size");
  expect_usage({"tiny.yaml", "--worldsize", "4"}, "did you mean");
  expect_usage(
      {"tiny.yaml", "--world-size", "4", "model.head=3"}, "model.heads");
  expect_usage(
      {"tiny.yaml",
       "--world-size",
       "4",
       "communication_budget.implicit_collectives=-2"},
      "communication_budget.implicit_collectives");
  expect_usage(
      {"tiny.yaml", "--world-size", "5", "mesh.tp=5"}, "not divisible");
  expect_usage(
      {"tiny.yaml", "--world-size", "2", "--measured", "nowhere"},
      "nowhere has no recipe.yaml");
  expect_usage({"tiny.yaml", "--world-size", "2097152"}, "--world-size");
  expect_usage(
      {"tiny.yaml", "--world-size", "2", "links.tp_latency_us=3"},
      "links.tp_bandwidth_gb_s");
}

TEST_F(ExplainCommandTest, MissingDataIsANote) {
  const auto [code, output, error] = explain(
      {"tiny.yaml", "--world-size", "2", "data.paths=[\"nowhere.txt\"]"});
  EXPECT_EQ(code, 0) << error;
  EXPECT_THAT(output, HasSubstr("note: "));
  EXPECT_THAT(output, HasSubstr("nowhere.txt"));
}

TEST_F(ExplainCommandTest, PutsARunsTimesBesideTheEstimates) {
  expect_success(
      launched(2, train({"mesh.tp=2", "trace={first_step: 2, steps: 2}"})));
  const auto [code, output, error] = explain(
      {"tiny.yaml",
       "mesh.tp=2",
       "--world-size",
       "2",
       "--measured",
       "outputs/tiny",
       "--json"});
  EXPECT_EQ(code, 0) << error;
  const auto json = nlohmann::json::parse(output);
  EXPECT_EQ(json.at("measured").at("traced_steps"), 2);
  EXPECT_GT(json.at("measured").at("wait_us"), 0);
  for (const auto& group : json.at("collectives")) {
    EXPECT_TRUE(group.at("measured_us").is_number()) << group;
  }
}

} // namespace
} // namespace weft::test
