// `weft checkpoint` as a user calls it: exit codes, and what goes where.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/sample.h"
#include "tests/integration/process.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Answer {
  std::optional<int> code;
  std::string output;
  std::string error;
  std::string last_error_line;

  /// The one line of --json.
  json parsed() const {
    EXPECT_EQ(lines_of(output).size(), 1) << output;
    return json::parse(output);
  }
};

class CheckpointCommand : public ::testing::Test {
 protected:
  CheckpointCommand() {
    SampleOptions options;
    options.step = 10;
    write_sample(checkpoints(), sample_tensors(1), options);
    options.step = 20;
    options.grid = {2, 2};
    write_sample(checkpoints(), sample_tensors(2), options);
  }

  fs::path run_folder() const { return scratch_.path() / "run"; }
  fs::path checkpoints() const { return run_folder() / "checkpoints"; }
  fs::path step(int n) const {
    return checkpoints() / ("step-" + std::to_string(n));
  }

  Answer call(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {WEFT_WEFT, "checkpoint"};
    all.insert(all.end(), words.begin(), words.end());
    Process process(all, scratch_.path());
    const auto code = process.wait();
    return {code, process.output(), process.error(), process.last_error_line()};
  }

  void damage(const fs::path& file) const {
    auto bytes = read_file(file);
    bytes.back() ^= 1;
    write_file(file, bytes);
  }

  test::TempFolder scratch_;
};

TEST_F(CheckpointCommand, LsListsTheNewestFirstAndMarksLatest) {
  write_file(step(10) / "manifest.json", "{}");
  for (const auto& path : {run_folder(), checkpoints()}) {
    const auto answer = call({"ls", path.string()});
    EXPECT_EQ(answer.code, 0) << answer.error;
    const auto lines = lines_of(answer.output);
    ASSERT_EQ(lines.size(), 3);
    EXPECT_THAT(lines[1], AllOf(HasSubstr("20"), HasSubstr("latest")));
    EXPECT_THAT(lines[2], AllOf(HasSubstr("10"), HasSubstr("damaged")));
  }
  const auto parsed = call({"ls", run_folder().string(), "--json"}).parsed();
  ASSERT_EQ(parsed["steps"].size(), 2);
  EXPECT_EQ(parsed["steps"][0]["step"], 20);
  EXPECT_EQ(parsed["steps"][0]["latest"], true);
  EXPECT_EQ(parsed["steps"][0]["tensors"], 10);
  EXPECT_TRUE(parsed["steps"][0]["damage"].is_null());
  EXPECT_TRUE(parsed["steps"][1]["damage"].is_string());
}

TEST_F(CheckpointCommand, LsOfNoneOrOneOrNothing) {
  fs::create_directory(scratch_.path() / "empty");
  const auto none = call({"ls", "empty"});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.output, HasSubstr("no checkpoints"));
  const auto one = call({"ls", step(20).string()});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.last_error_line, HasSubstr("weft checkpoint inspect"));
  const auto nothing = call({"ls", "nowhere"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.last_error_line, StartsWith("ERROR 2 rank=0 op="));
}

TEST_F(CheckpointCommand, VerifySoundFolders) {
  for (const auto& path : {run_folder(), checkpoints(), step(20)}) {
    const auto answer = call({"verify", path.string()});
    EXPECT_EQ(answer.code, 0) << answer.error;
    EXPECT_THAT(answer.output, HasSubstr("valid"));
    EXPECT_EQ(answer.error, "");
  }
  const auto parsed =
      call({"verify", run_folder().string(), "--json"}).parsed();
  EXPECT_EQ(parsed["sound"], true);
  EXPECT_EQ(parsed["folders"].size(), 2);
}

TEST_F(CheckpointCommand, VerifyNamesFileTensorAndOffset) {
  const std::string file = "shard-00001-00000.safetensors";
  damage(step(20) / file);
  write_file(step(20) / "more", "x");
  const auto answer = call({"verify", step(20).string()});
  EXPECT_EQ(answer.code, 4);
  EXPECT_THAT(
      answer.last_error_line,
      AllOf(
          StartsWith("ERROR 4 rank=0 op=checkpoint damaged: "),
          EndsWith(" (and 1 more)")));
  const auto lines = lines_of(answer.output);
  ASSERT_EQ(lines.size(), 2) << answer.output;
  EXPECT_THAT(lines[0], HasSubstr("step-20/more"));
  EXPECT_THAT(
      lines[1],
      AllOf(HasSubstr(file), HasSubstr("\"model.mask\""), HasSubstr("byte")));

  const auto again = call({"verify", run_folder().string(), "--json"});
  EXPECT_EQ(again.code, 4);
  const auto parsed = again.parsed();
  EXPECT_EQ(parsed["sound"], false);
  EXPECT_EQ(parsed["folders"][0]["sound"], false);
  EXPECT_EQ(parsed["folders"][1]["sound"], true);
  const auto& damages = parsed["folders"][0]["damages"];
  EXPECT_EQ(damages[0]["file"], "more");
  EXPECT_TRUE(damages[0]["offset"].is_null());
  EXPECT_EQ(damages[1]["tensor"], "model.mask");
  EXPECT_GT(damages[1]["offset"], 0);
}

TEST_F(CheckpointCommand, FolderWithoutManifestIsDamagedAndNoPathIsUsage) {
  fs::create_directory(scratch_.path() / "step-5");
  for (const std::string command : {"verify", "inspect"}) {
    EXPECT_EQ(call({command, "step-5"}).code, 4);
    EXPECT_EQ(call({command, "nowhere"}).code, 2);
    EXPECT_EQ(call({command}).code, 2);
  }
  EXPECT_EQ(call({"diff", "step-5", step(20).string()}).code, 4);
  fs::create_directory(scratch_.path() / "young");
  write_file(scratch_.path() / "young/recipe.yaml", "");
  const auto young = call({"verify", "young"});
  EXPECT_EQ(young.code, 2);
  EXPECT_THAT(
      young.last_error_line,
      HasSubstr("young is a run that has no checkpoint"));
  EXPECT_EQ(call({"diff", step(20).string(), "nowhere"}).code, 2);
  EXPECT_EQ(call({"diff", step(20).string()}).code, 2);
  EXPECT_EQ(call({}).code, 2);
  EXPECT_THAT(
      call({"verfy", "x"}).last_error_line, HasSubstr("did you mean verify?"));
}

TEST_F(CheckpointCommand, DiffSaysEqualOnAnyGrid) {
  SampleOptions options;
  options.grid = {3, 1};
  const auto other =
      write_sample(scratch_.path() / "other", sample_tensors(2), options);
  const auto answer = call({"diff", step(20).string(), other.string()});
  EXPECT_EQ(answer.code, 0) << answer.error;
  EXPECT_THAT(answer.output, HasSubstr("equal: 10 tensors"));
  // A run stands for its newest.
  const auto parsed =
      call({"diff", run_folder().string(), other.string(), "--json"}).parsed();
  EXPECT_EQ(parsed["equal"], true);
  EXPECT_EQ(parsed["tensors"], 10);
  EXPECT_EQ(parsed["differences"].size(), 0);
}

TEST_F(CheckpointCommand, DiffNamesWhatDiffers) {
  auto tensors = sample_tensors(2);
  tensors["model.cube"] = at::zeros({5, 6, 7}, at::kDouble);
  auto changed = tensors;
  changed["model.cube"] = tensors["model.cube"].clone();
  changed["model.cube"][1][2][3] = 0.25;
  const auto a = write_sample(scratch_.path() / "a", tensors, {});
  const auto b = write_sample(scratch_.path() / "b", changed, {});
  const auto answer = call({"diff", a.string(), b.string()});
  EXPECT_EQ(answer.code, 1);
  EXPECT_THAT(
      answer.output,
      AllOf(
          HasSubstr("model.cube"),
          HasSubstr("1 of 210"),
          HasSubstr("[1, 2, 3]")));
  EXPECT_THAT(answer.last_error_line, StartsWith("ERROR 1 rank=0"));
  const auto row = call({"diff", a.string(), b.string(), "--json"})
                       .parsed()["differences"][0];
  EXPECT_EQ(row["name"], "model.cube");
  EXPECT_EQ(row["elements"], 1);
  EXPECT_EQ(row["max_abs"], 0.25);
  EXPECT_EQ(row["first"], (std::vector<int>{1, 2, 3}));
}

TEST_F(CheckpointCommand, DiffOfADamagedFolderIsDamage) {
  damage(step(10) / "shard-00000-00000.safetensors");
  const auto answer =
      call({"diff", step(10).string(), step(10).string(), "--json"});
  EXPECT_EQ(answer.code, 4);
  EXPECT_EQ(answer.output, "");
  EXPECT_THAT(answer.last_error_line, StartsWith("ERROR 4"));
}

TEST_F(CheckpointCommand, InspectShowsTensorsAndState) {
  const auto answer = call({"inspect", run_folder().string()});
  EXPECT_EQ(answer.code, 0) << answer.error;
  EXPECT_THAT(
      answer.output,
      AllOf(
          HasSubstr("step 20"),
          HasSubstr("model.embed.weight"),
          HasSubstr("[96, 40]"),
          HasSubstr("\"sample\": 320")));
  const auto parsed = call({"inspect", step(20).string(), "--json"}).parsed();
  EXPECT_EQ(parsed["state"]["cursor"]["sample"], 320);
  EXPECT_EQ(parsed["tensors"]["model.embed.weight"]["chunks"].size(), 4);
  EXPECT_EQ(parsed["tensors"]["model.mask"]["dtype"], "bool");
}

TEST_F(CheckpointCommand, InspectShowsOneTensor) {
  const auto path = step(20).string();
  const auto answer = call({"inspect", path, "model.uneven.weight"});
  EXPECT_EQ(answer.code, 0) << answer.error;
  EXPECT_THAT(answer.output, HasSubstr("[3, 2] at [4, 3]"));
  const auto parsed =
      call({"inspect", path, "model.uneven.weight", "--json"}).parsed();
  EXPECT_EQ(parsed.size(), 1);
  EXPECT_EQ(parsed["model.uneven.weight"]["shape"], (std::vector<int>{7, 5}));
  const auto wrong = call({"inspect", path, "model.unevn.weight"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(
      wrong.last_error_line, HasSubstr("did you mean model.uneven.weight?"));
}

} // namespace
} // namespace weft::test
