// Models in Hugging Face's form through the real programs: trained from,
// brought in and out, refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"

namespace weft::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HubCommandTest : public ProcessTest {
 protected:
  HubCommandTest() {
    const fs::path stored = WEFT_TEST_HUB_FOLDER;
    fs::copy(stored / "llama_tied", folder_ / "model");
    write("model/tokenizer.json", "{\"some\": \"tokenizer\"}");
    write(
        "hub.yaml",
        "name: tuned\n"
        "mesh: {dp: -1, tp: 1}\n"
        "model: {from: model}\n"
        "data: {paths: [corpus.txt], sequence_length: 40}\n"
        "train: {steps: 3, global_batch_size: 4}\n"
        "eval: {batches: 0}\n");
  }

  static Words tune(int dp, int tp, Words more = {}) {
    more.push_back("mesh.dp=" + std::to_string(dp));
    more.push_back("mesh.tp=" + std::to_string(tp));
    return launched(dp * tp, train(more, "hub.yaml"));
  }

  static Words checkpoint(Words more) {
    Words words{WEFT_WEFT, "checkpoint"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::string failure(const Words& words, int code) const {
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), code) << run.output() << run.error();
    EXPECT_THAT(
        run.last_error_line(), StartsWith("ERROR " + std::to_string(code)));
    return run.last_error_line();
  }
};

TEST_F(HubCommandTest, ARunBeginsWithAFolderAndEndsWithOne) {
  Process run(tune(2, 2, {"checkpoint.export_to=out"}), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(
      run.output(),
      AllOf(
          HasSubstr("begins with the weights of model (11 tensors)"),
          HasSubstr("exported out: 11 tensors, 85.1 kB in 1 file, beside "
                    "config.json, generation_config.json, tokenizer.json")));
  EXPECT_EQ(
      test::read_text(folder_ / "out/tokenizer.json"),
      "{\"some\": \"tokenizer\"}");
  // The folder that came out is a model as well; three ranks cut nothing
  // evenly.
  const auto first = losses(metrics("outputs/tuned")).front();
  expect_success(tune(1, 3, {"model.from=out", "output_dir=next"}));
  EXPECT_LT(losses(metrics("next")).front(), 0.99 * first);
  // It is not written over, and found before anything is loaded.
  EXPECT_THAT(
      failure(tune(1, 1, {"checkpoint.export_to=out", "output_dir=other"}), 2),
      HasSubstr(
          "checkpoint.export_to: out already exists and is not overwritten"));
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  // The run that made it has ended, and reports it.
  expect_success(tune(2, 2, {"checkpoint.export_to=out"}));
}

// The paths of a recipe are those of the folder where it was trained.
TEST_F(HubCommandTest, ExportsFromElsewhereFindTheModelThatARunBeganWith) {
  expect_success(tune(1, 1));
  expect_success(checkpoint({"import", "model", "in", "--as", "model"}));
  fs::create_directories(folder_ / "elsewhere/model");
  write("elsewhere/model/tokenizer.json", "{\"another\": \"tokenizer\"}");
  for (const std::string from : {"outputs/tuned", "in"}) {
    Process run(
        checkpoint({"export", "../" + from, "../of_" + from.substr(0, 2)}),
        folder_ / "elsewhere");
    ASSERT_EQ(run.wait(), 0) << run.error();
    EXPECT_EQ(
        test::read_text(
            folder_ / ("of_" + from.substr(0, 2)) / "tokenizer.json"),
        "{\"some\": \"tokenizer\"}");
  }
}

TEST_F(HubCommandTest, ARunGoesOnWhenItsFolderIsGone) {
  expect_success(tune(1, 2));
  fs::remove_all(folder_ / "model");
  Process run(
      train({"train.steps=5", "mesh.tp=1"}, "outputs/tuned/recipe.yaml"),
      folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(
      run.output(), HasSubstr("resumes from outputs/tuned/checkpoints/step-3"));
  EXPECT_THAT(
      failure(train({"--fresh", "mesh.tp=1"}, "outputs/tuned/recipe.yaml"), 2),
      AllOf(HasSubstr("model.from"), HasSubstr("there is no such folder")));
}

TEST_F(HubCommandTest, CheckpointsGoInAndOut) {
  expect_success(checkpoint({"import", "model", "in", "--as", "model"}));
  expect_success(checkpoint({"verify", "in"}));
  Process run(
      checkpoint(
          {"export",
           "in/step-0",
           "out",
           "--dtype",
           "float16",
           "--max-shard-size",
           "20KB",
           "--json"}),
      folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  const auto json = nlohmann::json::parse(run.output());
  EXPECT_EQ(json.at("tensors"), 11);
  EXPECT_EQ(json.at("files"), 3);
  EXPECT_TRUE(fs::exists(folder_ / "out/model-00003-of-00003.safetensors"));
  expect_success(tune(1, 1, {"model.from=out"}));
  EXPECT_THAT(
      failure(checkpoint({"export", "in", "more", "--max-shard-size", "0"}), 2),
      HasSubstr("--max-shard-size: at least 1 byte"));
  EXPECT_FALSE(fs::exists(folder_ / "more"));
  EXPECT_THAT(
      failure(checkpoint({"import", "model", "in"}), 2),
      HasSubstr("in/step-0 already exists"));
  EXPECT_THAT(
      failure(checkpoint({"export", "in", "out"}), 2),
      HasSubstr("out already exists"));
  EXPECT_THAT(
      failure(checkpoint({"import", "nowhere", "x"}), 2),
      HasSubstr("there is no such file or folder"));
  EXPECT_FALSE(fs::exists(folder_ / "x"));
}

TEST_F(HubCommandTest, NumbersOfNoModelAreRefusedAtOnce) {
  auto config = nlohmann::ordered_json::parse(
      test::read_text(folder_ / "model/config.json"));
  config["num_hidden_layers"] = 100'000'000;
  write("model/config.json", config.dump());
  EXPECT_THAT(
      failure(checkpoint({"import", "model", "in"}), 2),
      HasSubstr("model/config.json: num_hidden_layers: expected at least 1"));
  EXPECT_FALSE(fs::exists(folder_ / "in"));
}

TEST_F(HubCommandTest, FoldersThatDoNotFitAreRefusedBeforeTraining) {
  write("model/config.json", "{\"model_type\": \"bert\"}");
  EXPECT_THAT(
      failure(tune(1, 2), 2),
      HasSubstr("hub.yaml:3:15: model.from: model/config.json: model_type: "
                "\"bert\" is not supported"));
  fs::remove_all(folder_ / "model");
  fs::copy(fs::path(WEFT_TEST_HUB_FOLDER) / "llama", folder_ / "model");
  const auto weights = folder_ / "model/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 1);
  EXPECT_THAT(
      failure(tune(1, 2), 4),
      AllOf(
          HasSubstr("model/model.safetensors"),
          HasSubstr("bytes of data, but the file has")));
}

} // namespace
} // namespace weft::test
