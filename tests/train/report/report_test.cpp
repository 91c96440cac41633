#include "train/report/report.h"

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "tests/support/count.h"
#include "train/metrics/write_file.h"

namespace weft::train {
namespace {

using nlohmann::json;
using test::count;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kStep =
    R"({"step":1,"loss":5.5,"grad_norm":2,"lr":0.1,"tokens":8,)"
    R"("tokens_per_s":10,"step_ms":100,"data_ms":10,"comm_ms":30,)"
    R"("checkpoint_ms":5,"peak_rss_mb":100,"eval_loss":5.75})"
    "\n";

constexpr const char* kLayout =
    R"({"dims":["dp","tp"],"shape":[1,2],"ranks":[0,1],"elements":[1,1],)"
    R"("bytes":[4,4],"total_elements":2,"total_bytes":8,"parameters":[]})";

std::string recipe_text(const std::string& name, int steps) {
  return "name: " + name + "\nmesh:\n  dp: 1\n  tp: 2\ntrain:\n  steps: " +
         std::to_string(steps) + "\n";
}

// A run's folder that goes with its test.
class RunFolder : public fixtures::TempFolder {
 public:
  explicit RunFolder(const std::string& name = "good", int steps = 1) {
    write("metrics.jsonl", kStep);
    write("recipe.yaml", recipe_text(name, steps));
    write("layout.json", kLayout);
  }
};

// The data inside the page that write_report() made.
json data_of(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="data">)";
  const size_t at = page.find(begin);
  EXPECT_NE(at, std::string::npos);
  const size_t from = at + begin.size();
  return json::parse(page.substr(from, page.find("</script>", from) - from));
}

json data_of_run(const fixtures::TempFolder& run) {
  return data_of(fixtures::read_text(write_report(run.path())))["runs"][0];
}

TEST(Report, HoldsTheRun) {
  const RunFolder folder;
  EXPECT_EQ(write_report(folder.path()), folder / "report.html");
  const auto run = data_of_run(folder);
  EXPECT_EQ(run["label"], "good");
  EXPECT_EQ(run["total_steps"], 1);
  EXPECT_EQ(run["step"], json::parse("[1]"));
  EXPECT_EQ(run["series"]["loss"]["mean"], json::parse("[5.5]"));
  EXPECT_EQ(run["series"]["compute_ms"]["mean"], json::parse("[60.0]"));
  EXPECT_EQ(run["eval"]["loss"], json::parse("[5.75]"));
  EXPECT_EQ(run["summary"]["loss"], 5.5);
  EXPECT_EQ(run["summary"]["eval_loss"], 5.75);
  EXPECT_EQ(run["summary"]["eval_best_step"], 1);
  EXPECT_EQ(run["summary"]["comm_share"], 0.3);
  EXPECT_EQ(run["summary"]["duration_s"], 0.105);
  EXPECT_EQ(run["layout"]["shape"], json::parse("[1,2]"));
  EXPECT_EQ(run["recipe"][2], json::parse(R"(["mesh.tp","2"])"));
  EXPECT_EQ(run["notes"], json::array());
}

TEST(Report, HoldsTheReplicaGroups) {
  const RunFolder folder;
  EXPECT_EQ(data_of_run(folder)["quorum"], json::array());
  folder.write(
      "quorum.jsonl",
      R"({"lighthouse":1,"epoch":2,"step":3,"time":4.0,"groups":[0,2],"lives":[1,3],)"
      R"("joined":[],"lost":[{"group":1,"why":"</script>"}],)"
      R"("reconfigure_ms":7.5,"steps_redone":1})"
      "\n{\"epoch\":");
  const auto run = data_of_run(folder);
  ASSERT_EQ(run["quorum"].size(), 1U);
  EXPECT_EQ(run["quorum"][0]["groups"], json::parse("[0,2]"));
  EXPECT_EQ(run["quorum"][0]["lost"][0]["why"], "</script>");
  EXPECT_EQ(
      run["notes"],
      json::parse(R"(["quorum.jsonl: 1 unreadable lines are left out"])"));
}

TEST(Report, LoadsNothing) {
  const RunFolder folder;
  auto page = fixtures::read_text(write_report(folder.path()));
  const std::string name_of_svg = "http://www.w3.org/2000/svg";
  const size_t at = page.find(name_of_svg);
  ASSERT_NE(at, std::string::npos);
  page.erase(at, name_of_svg.size()); // a name, not an address
  for (const auto* reference :
       {"://", "src=", "href=", "@import", "url(//", "fetch(", "import("}) {
    EXPECT_EQ(count(page, reference), 0U) << reference;
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_EQ(count(page, "@TITLE@") + count(page, "@DATA@"), 0U);
}

TEST(Report, TextFromARunStaysText) {
  const std::string name = "</script><script>alert(1)</script><!-- @SCRIPT@ &";
  const RunFolder folder;
  folder.write("recipe.yaml", "name: '" + name + "'\n");
  const auto page = fixtures::read_text(write_report(folder.path()));
  EXPECT_EQ(count(page, "</script>"), 2U);
  EXPECT_EQ(count(page, "<script"), 2U);
  EXPECT_EQ(count(page, "<!--"), 0U);
  EXPECT_THAT(page, HasSubstr("<title>&lt;/script&gt;"));
  EXPECT_EQ(data_of(page)["runs"][0]["label"], name);
}

TEST(Report, NamesThatAreNotUtf8AreShownAllTheSame) {
  const fixtures::TempFolder folder;
  folder.write("r\xff\xfen/metrics.jsonl", kStep);
  const auto page = fixtures::read_text(write_report(folder / "r\xff\xfen"));
  EXPECT_THAT(page, HasSubstr("<title>r\xef\xbf\xbd\xef\xbf\xbdn - weft"));
  EXPECT_EQ(data_of(page)["runs"][0]["label"], "r\xef\xbf\xbd\xef\xbf\xbdn");
}

TEST(Report, ARunWithoutAStepIsDrawn) {
  const RunFolder folder;
  folder.write("metrics.jsonl", "");
  const auto run = data_of_run(folder);
  EXPECT_EQ(run["summary"]["steps"], 0);
  EXPECT_TRUE(run["summary"]["loss"].is_null());
  EXPECT_TRUE(run["summary"]["comm_share"].is_null());
  EXPECT_EQ(run["notes"][0], "metrics.jsonl has no step yet");
}

TEST(Report, WhatIsMissingOrDamagedLeavesANote) {
  const RunFolder folder;
  folder.write("recipe.yaml", "name: [\n");
  folder.write("layout.json", "{}");
  const auto run = data_of_run(folder);
  EXPECT_EQ(run["recipe"], json::array());
  EXPECT_TRUE(run["layout"].is_null());
  ASSERT_EQ(run["notes"].size(), 2U);
  EXPECT_THAT(
      run["notes"][0].get<std::string>(),
      HasSubstr("recipe.yaml:2:1: not YAML"));
  EXPECT_THAT(run["notes"][1].get<std::string>(), HasSubstr("layout.json: "));
  std::filesystem::remove(folder / "recipe.yaml");
  EXPECT_EQ(
      data_of_run(folder)["notes"][0],
      "recipe.yaml: No such file or directory");
}

TEST(Report, ARecipeOfAnotherVersionIsShownAsItStands) {
  const RunFolder folder;
  folder.write(
      "recipe.yaml", "new_key: {a: {b: 1}, c: [x, 'y z']}\ntrain: {steps: 7}");
  const auto run = data_of_run(folder);
  EXPECT_EQ(
      run["recipe"],
      json::parse(
          R"([["new_key.a.b","1"],["new_key.c","[x, y z]"],["train.steps","7"]])"));
  EXPECT_EQ(run["total_steps"], 7);
}

TEST(Report, RunsLieOnTopOfEachOther) {
  const RunFolder a("same", 1);
  const RunFolder b("same", 2);
  const RunFolder c("other", 2);
  c.write("recipe.yaml", recipe_text("other", 2) + "seed: 3\n");
  const std::vector<std::string> folders = {a.path(), b.path(), c.path()};
  write_report(folders, a / "all.html");
  const auto data = data_of(fixtures::read_text(a / "all.html"));
  EXPECT_EQ(data["runs"][0]["label"], a.path()) << "the name is not enough";
  EXPECT_EQ(data["runs"][1]["label"], b.path());
  EXPECT_EQ(data["runs"][2]["label"], "other");
  EXPECT_EQ(
      data["differences"],
      json::parse(R"([{"key":"train.steps","values":["1","2","2"]},
                      {"key":"seed","values":[null,null,"3"]}])"));
  EXPECT_FALSE(std::filesystem::exists(a / "report.html"));
}

TEST(Report, RefusesWhatIsNoRun) {
  const fixtures::TempFolder folder;
  const auto refused = [](const std::string& path) {
    return fixtures::message_of<mesh::UsageError>([&] { write_report(path); });
  };
  EXPECT_EQ(refused("/nowhere/run"), "/nowhere/run: No such file or directory");
  EXPECT_EQ(refused(""), "\"\": is not a folder");
  EXPECT_THAT(
      refused(folder.path()),
      HasSubstr(
          folder.path() + ": is not a run's folder: it has no metrics.jsonl"));
  const auto file = folder.write("file", "x");
  EXPECT_THAT(refused(file), HasSubstr(file + ": is not a folder"));
  std::filesystem::create_directory(folder / "metrics.jsonl");
  EXPECT_THAT(refused(folder.path()), HasSubstr("not a regular file"));
}

TEST(Report, NamesAFileThatCannotBeWritten) {
  const RunFolder run;
  const std::vector<std::string> folders = {run.path()};
  const auto refused = [&](const std::string& path) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { write_report(folders, path); });
  };
  EXPECT_THAT(refused("/nowhere/r.html"), HasSubstr("No such file"));
  EXPECT_THAT(refused("/dev/full"), HasSubstr("No space left on device"));
  EXPECT_THAT(refused(run.path()), HasSubstr("is a folder"));
}

TEST(Report, ReplacesTheOldOneAtOnce) {
  const RunFolder run;
  run.write("report.html", "old");
  write_report(run.path());
  EXPECT_THAT(
      fixtures::read_text(run / "report.html"), Not(HasSubstr("old\n")));
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(run.path())) {
    ++files;
  }
  EXPECT_EQ(files, 4U) << "no temporary file is left";
}

TEST(LiveReport, TakesLittleOfTheTime) {
  const RunFolder run;
  LiveReport report(run.path());
  EXPECT_EQ(report.refresh(), "");
  ASSERT_TRUE(std::filesystem::remove(run / "report.html"));
  // Writing it took far more than 1 % of the time so far.
  EXPECT_EQ(report.refresh(), "");
  EXPECT_FALSE(std::filesystem::exists(run / "report.html"));
  EXPECT_EQ(report.refresh(/*is_last=*/true), "");
  EXPECT_TRUE(std::filesystem::exists(run / "report.html"));
}

TEST(LiveReport, SaysWhatWentWrong) {
  LiveReport report("/nowhere/run");
  EXPECT_EQ(
      report.refresh(), "report: /nowhere/run: No such file or directory");
  const auto mesh = mesh::DeviceMesh();
  EXPECT_THAT(
      report.write_layout(torch::nn::Module(), mesh),
      HasSubstr("report: cannot write \"/nowhere/run/layout.json\""));
}

} // namespace
} // namespace weft::train
