// Folders whose weights are not what their config says, damaged files, hostile
// ones.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/files/error.h"
#include "checkpoint/store/store.h"
#include "hf/export_model.h"
#include "hf/import_model.h"
#include "mesh/error/error.h"
#include "tests/hf/hub_folder.h"
#include "train/setup/initial_weights.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::hf {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What `E` says of a folder before any rank waits for another.
template <class E>
std::string weights_refusal(const fs::path& folder) {
  auto recipe = train::parse_recipe(hub_recipe(folder, 1, 1), "r.yaml");
  train::validate(recipe, 1);
  return fixtures::message_of<E>([&] { train::check_initial_weights(recipe); });
}

std::string usage_refusal(const fs::path& folder) {
  return weights_refusal<mesh::UsageError>(folder);
}

std::string damage_of(const fs::path& folder) {
  return weights_refusal<checkpoint::CheckpointError>(folder);
}

TEST(HubRefuse, AllTensorsThatDoNotFitAreListedTogether) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  const auto path = folder / "model.safetensors";
  auto file = TensorFile::read(path);
  file.rename("model.norm.weight", "");
  file.rename("model.layers.0.self_attn.q_proj.weight", "");
  file.rename("lm_head.weight", "head.weight");
  file.add("model.layers.1.mlp.up_proj.weight", "F32", {1}, "0000");
  file.header["model.layers.0.input_layernorm.weight"]["shape"] = {3, 4};
  file.header["model.layers.0.self_attn.o_proj.weight"]["dtype"] = "I32";
  file.write(path);
  EXPECT_THAT(
      usage_refusal(folder),
      AllOf(
          StartsWith("r.yaml:2:"),
          HasSubstr("model.from: " + folder.string()),
          HasSubstr(
              "3 missing (lm_head.weight, "
              "model.layers.0.self_attn.q_proj.weight, model.norm.weight)"),
          HasSubstr("2 not expected (head.weight in model.safetensors, "
                    "model.layers.1.mlp.up_proj.weight in model.safetensors)"),
          HasSubstr("2 of another shape or type"),
          HasSubstr("model.layers.0.input_layernorm.weight is float32 [3, 4] "
                    "in model.safetensors, not [12]"),
          HasSubstr("o_proj.weight is int32 [12, 12]")));
}

TEST(HubRefuse, OfVeryManyTensorsSomeAreNamed) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  auto config = nlohmann::ordered_json::parse(
      fixtures::read_text(folder / "config.json"));
  config["num_hidden_layers"] = 1000;
  temp.write("model/config.json", config.dump());
  const auto message = fixtures::message_of<mesh::UsageError>(
      [&] { import_model(folder, temp / "run"); });
  EXPECT_THAT(
      message,
      AllOf(
          HasSubstr(" missing (model.layers.1.input_layernorm.weight, "),
          HasSubstr(", ...)")));
  EXPECT_LT(message.size(), 20'000);
  EXPECT_FALSE(fs::exists(temp / "run"));
}

// A checkpoint keeps the path as JSON.
TEST(HubRefuse, APathThatIsNotUtf8) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder(
      "llama",
      temp,
      "mod\xff"
      "el");
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { import_model(folder, temp / "run"); }),
      HasSubstr("the path is not UTF-8"));
  EXPECT_FALSE(fs::exists(temp / "run"));
}

TEST(HubRefuse, FoldersWithoutWeights) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  fs::rename(folder / "model.safetensors", folder / "x");
  EXPECT_THAT(
      usage_refusal(folder),
      HasSubstr("the folder contains neither model.safetensors nor "
                "model.safetensors.index.json"));
  temp.write("model/pytorch_model.bin", "x");
  EXPECT_THAT(usage_refusal(folder), HasSubstr("pickled weights"));
  fs::create_symlink("x", folder / "model.safetensors");
  EXPECT_THAT(
      usage_refusal(folder),
      AllOf(HasSubstr("links are not followed"), HasSubstr("hf download")));
}

TEST(HubRefuse, DamagedFilesAreNamedWithTheByte) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  const auto path = folder / "model.safetensors";
  const auto sound = fixtures::read_text(path);
  const auto expect_damage = [&](const std::string& bytes,
                                 const std::string& text) {
    temp.write("model/model.safetensors", bytes);
    EXPECT_THAT(
        damage_of(folder), AllOf(HasSubstr(path.string()), HasSubstr(text)));
  };
  expect_damage(
      sound.substr(0, sound.size() - 1), "bytes of data, but the file has");
  expect_damage(sound + "x", "bytes of data, but the file has");
  expect_damage(sound.substr(0, 7), "7 bytes");
  expect_damage(sound.substr(0, 100), "byte 0: the file states a header of");
  expect_damage(std::string(8, '\xff') + sound.substr(8), "byte 0");
  temp.write("model/model.safetensors", sound);
  const auto file = TensorFile::read(path);
  auto overlapping = file;
  auto& offsets = overlapping.header["model.norm.weight"]["data_offsets"];
  offsets = {offsets[0].get<int64_t>() - 4, offsets[1].get<int64_t>() - 4};
  overlapping.write(path);
  EXPECT_THAT(damage_of(folder), HasSubstr("an overlap"));
  auto hostile = file;
  hostile.header["model.norm.weight"]["shape"] = {int64_t{1} << 62, 8};
  hostile.write(path);
  EXPECT_THAT(damage_of(folder), HasSubstr("do not match"));
}

TEST(HubRefuse, IndexesThatLieOrLeadElsewhere) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama_tied", temp);
  const auto path = folder / "model.safetensors.index.json";
  const auto sound = nlohmann::ordered_json::parse(fixtures::read_text(path));
  const auto with = [&](const std::string& name, const nlohmann::json& file) {
    auto index = sound;
    index["weight_map"][name] = file;
    temp.write("model/model.safetensors.index.json", index.dump());
  };
  for (const char* elsewhere :
       {"../x.safetensors", "/etc/passwd", "..", "", "a/b.safetensors"}) {
    with("model.norm.weight", elsewhere);
    EXPECT_THAT(
        damage_of(folder),
        AllOf(
            HasSubstr("model.safetensors.index.json"),
            HasSubstr("expected the plain name of a file")))
        << elsewhere;
  }
  with("model.norm.weight", 3);
  EXPECT_THAT(damage_of(folder), HasSubstr("is not expected"));
  with("model.norm.weight", "model-00009-of-00005.safetensors");
  EXPECT_THAT(
      usage_refusal(folder),
      HasSubstr("model-00009-of-00005.safetensors does not exist"));
  with("model.layers.7.x", "model-00001-of-00005.safetensors");
  EXPECT_THAT(
      usage_refusal(folder),
      HasSubstr("1 named by the index but not there (model.layers.7.x "
                "(model-00001-of-00005.safetensors))"));
  temp.write("model/model.safetensors.index.json", "{\"weight_map\": [1]}");
  EXPECT_THAT(damage_of(folder), HasSubstr("expected a file name"));
  temp.write("model/model.safetensors.index.json", "{}");
  EXPECT_THAT(damage_of(folder), HasSubstr("there is no weight_map"));
}

TEST(HubRefuse, AFileThatTwoNamesShare) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama_tied", temp);
  const auto first = folder / "model-00001-of-00005.safetensors";
  auto file = TensorFile::read(first);
  file.add("model.norm.weight", "BF16", {24}, std::string(48, '\0'));
  file.write(first);
  EXPECT_THAT(
      damage_of(folder),
      AllOf(
          HasSubstr("model-00005-of-00005.safetensors"),
          HasSubstr("\"model.norm.weight\" is already in "
                    "model-00001-of-00005.safetensors")));
}

TEST(HubRefuse, AFolderThatIsGoneWhenItsWeightsAreNeeded) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("llama", temp);
  auto recipe = train::parse_recipe(hub_recipe(folder, 1, 1), "r.yaml");
  train::validate(recipe, 1);
  fs::remove_all(folder);
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { train::check_initial_weights(recipe); }),
      AllOf(HasSubstr("model.from"), HasSubstr("there is no such folder")));
}

TEST(HubRefuse, CheckpointsThatAreNoModelOfOurs) {
  const fixtures::TempFolder temp;
  const auto imported = import_model(stored_hub_folder("llama"), temp / "run");
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { import_model(stored_hub_folder("llama"), temp / "run"); }),
      HasSubstr("already exists"));
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>([&] {
        export_model(imported.path, temp / "out", {.max_shard_bytes = 0});
      }),
      HasSubstr("a file size of 0 bytes, expected at least 1"));
  fs::resize_file(imported.path / "shard-00000-00000.safetensors", 1000);
  EXPECT_NE(
      fixtures::message_of<checkpoint::CheckpointError>(
          [&] { export_model(imported.path, temp / "out"); }),
      "");
  // Nothing is left of it.
  EXPECT_FALSE(fs::exists(temp / "out"));
  size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(temp.path())) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp")));
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

} // namespace
} // namespace weft::hf
