// `weft checkpoint reshard|import|export` as a user calls them.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/store/store.h"
#include "checkpoint/transfer/describe_safetensors.h"
#include "tests/checkpoint/command/weft_checkpoint.h"
#include "tests/checkpoint/sample.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using ExchangeCommand = WeftCheckpoint;

TEST_F(ExchangeCommand, ReshardWritesAnEqualCheckpoint) {
  const auto said =
      call({"reshard", "run", "out", "--mesh", "dp=3", "--json"}).parsed();
  EXPECT_EQ(said["path"], "out/step-30");
  EXPECT_EQ(said["mesh"], "dp=3");
  EXPECT_EQ(said["tensors"], 10);
  EXPECT_EQ(said["files"], 3);
  EXPECT_EQ(said["notes"], json::array());
  expect_equal_steps("run", "out");
  EXPECT_EQ(call({"verify", "out"}).code, 0);
}

TEST_F(ExchangeCommand, ReshardBadInput) {
  expect_refused({"reshard", "run", "out"}, 2, "--mesh");
  expect_refused(
      {"reshard", "run", "out", "--mesh", "dp"}, 2, "The format is dp=2,tp=4");
  expect_refused({"reshard", "nowhere", "out", "--mesh", "dp=2"}, 2, "nowhere");
  expect_refused(
      {"reshard", "run", "run/checkpoints", "--mesh", "dp=2"}, 2, "exists");
  write_file(at("file"), "x");
  expect_refused({"reshard", "file", "out", "--mesh", "dp=2"}, 2, "file");
  expect_refused({"reshard", "run", "file", "--mesh", "dp=2"}, 2, "file");
  EXPECT_FALSE(fs::exists(at("out")));
  write_file(step(30) / "manifest.json", "{}");
  expect_refused({"reshard", "run", "out", "--mesh", "dp=2"}, 4, "manifest");
}

TEST_F(ExchangeCommand, ExportAndImportOfOneFile) {
  const auto said = call({"export",
                          "run",
                          "all.safetensors",
                          "--format",
                          "safetensors",
                          "--json"})
                        .parsed();
  EXPECT_EQ(said["tensors"], 10);
  EXPECT_EQ(said["files"], 1);
  const auto back =
      call({"import", "all.safetensors", "back", "--step", "30", "--json"})
          .parsed();
  EXPECT_EQ(back["as"], "tensors");
  EXPECT_EQ(back["prefix"], "");
  EXPECT_EQ(back["tensors"], 10);
  expect_equal(read_sample(at("back/step-30")), sample_tensors(30));
  EXPECT_EQ(call({"verify", "back"}).code, 0);
  // An older step, added later, is not what a run resumes from.
  EXPECT_EQ(
      call({"import", "all.safetensors", "back", "--step", "10"}).code, 0);
  EXPECT_EQ(read_file(at("back/latest")), "step-30\n");
  // Plain files, of which any reader of safetensors knows enough.
  const auto header = read_file(at("all.safetensors")).substr(0, 200);
  EXPECT_THAT(header, Not(HasSubstr("DCP_SHARDING_INFO")));
}

TEST_F(ExchangeCommand, ExportOfAFolderHasAnIndex) {
  const auto said = call({"export",
                          step(20).string(),
                          "out",
                          "--format",
                          "safetensors",
                          "--max_shard_size",
                          "4KB",
                          "--json"})
                        .parsed();
  EXPECT_GT(said["files"], 2);
  EXPECT_TRUE(fs::exists(at("out/model.safetensors.index.json")));
  EXPECT_EQ(call({"import", "out", "back"}).code, 0);
  expect_equal(read_sample(at("back/step-0")), sample_tensors(20));
}

TEST_F(ExchangeCommand, ExportChoosesRenamesAndConverts) {
  const auto export_of = [](const std::string& source) {
    return std::vector<std::string>{
        "export",
        source,
        "some.safetensors",
        "--format",
        "safetensors",
        "--include",
        "model.**",
        "--exclude",
        "**.mask",
        "--rename",
        "^model\\.=",
        "--dtype",
        "bfloat16",
        "--json"};
  };
  // The sample's float64 values are random bits, and bfloat16 cannot hold most
  // of them.
  expect_refused(export_of("run"), 2, "too large for bfloat16");
  EXPECT_FALSE(fs::exists(at("some.safetensors")));
  auto tensors = sample_tensors(30);
  tensors["model.cube"] = at::full({5, 6, 7}, 0.1, at::kDouble);
  write_sample(at("fits"), tensors);
  const auto said = call(export_of("fits")).parsed();
  EXPECT_EQ(said["tensors"], 7);
  const auto manifest = checkpoint::describe_safetensors(
      checkpoint::Folder::open(scratch_.path()), "some.safetensors");
  EXPECT_EQ(manifest.tensors.size(), 7);
  EXPECT_EQ(manifest.tensors.at("embed.weight").dtype, at::kBFloat16);
  EXPECT_EQ(manifest.tensors.at("steps").dtype, at::kLong);
  // Names without a part get one, here another than model.
  const auto back =
      call({"import", "some.safetensors", "back", "--prefix", "ema.", "--json"})
          .parsed();
  EXPECT_EQ(back["prefix"], "ema.");
  EXPECT_TRUE(read_sample(at("back/step-0")).contains("ema.embed.weight"));
  const auto plain =
      call({"import", "some.safetensors", "plain", "--json"}).parsed();
  EXPECT_EQ(plain["prefix"], "model.");
}

TEST_F(ExchangeCommand, ExportBadInput) {
  const auto refused =
      [&](std::vector<std::string> words, int code, const std::string& text) {
        words.insert(words.begin(), "export");
        words.insert(words.end(), {"--format", "safetensors"});
        expect_refused(words, code, text);
      };
  refused({"nowhere", "out"}, 2, "nowhere");
  refused({"run", "run"}, 2, "already exists");
  refused({"run", step(10).string()}, 2, "already exists");
  refused({"run", "out", "--include", "nothing.*"}, 2, "matches no tensor");
  refused({"run", "out", "--exclude", "**"}, 2, "no tensor is left");
  refused({"run", "out", "--rename", "x"}, 2, "--rename");
  refused({"run", "out", "--rename", "(=x"}, 2, "(");
  refused({"run", "out", "--rename", "^.*$=x"}, 2, "would both be exported as");
  refused({"run", "out", "--rename", "^.*$="}, 2, "rename");
  refused({"run", "out", "--max-shard-size", "0"}, 2, "at least 1 byte");
  expect_refused(
      {"export", "run", "out", "--include", "model.**"}, 2, "--format");
  auto bytes = read_file(step(30) / "shard-00000-00000.safetensors");
  bytes.back() ^= 1;
  write_file(step(30) / "shard-00000-00000.safetensors", bytes);
  refused({"run", "out.safetensors"}, 4, "shard-00000-00000.safetensors");
  refused({"run", "out"}, 4, "shard-00000-00000.safetensors");
  for (const auto& entry : fs::directory_iterator(scratch_.path())) {
    EXPECT_EQ(entry.path().filename(), "run");
  }
}

TEST_F(ExchangeCommand, ImportOfFoldersOfPyTorch) {
  const fs::path oracle = WEFT_ORACLE;
  for (const char* name :
       {"torch_sharded", "torch_rank0", "single.safetensors"}) {
    const auto said =
        call({"import", (oracle / name).string(), name, "--json"}).parsed();
    EXPECT_EQ(said["as"], "tensors");
    EXPECT_EQ(said["tensors"], 20);
    expect_equal_steps(name, "torch_sharded");
  }
  expect_refused(
      {"import", (oracle / "torch_sharded").string(), "torch_sharded"},
      2,
      "already exists");
}

TEST_F(ExchangeCommand, ImportSaysWhatItTakesAFolderFor) {
  fs::create_directory(at("model"));
  write_file(at("model/config.json"), R"({"model_type": "other"})");
  fs::copy(
      fs::path(WEFT_ORACLE) / "single.safetensors",
      at("model/model.safetensors"));
  const auto as_model = call({"import", "model", "out"});
  EXPECT_EQ(as_model.code, 2);
  EXPECT_THAT(as_model.error, HasSubstr("taking model as a model"));
  EXPECT_THAT(as_model.last_error_line, HasSubstr("config.json"));
  const auto as_tensors =
      call({"import", "model", "out", "--as", "tensors", "--json"}).parsed();
  EXPECT_EQ(as_tensors["tensors"], 20);
  expect_refused(
      {"import", "model", "o", "--as", "model", "--step", "3"}, 2, "--as");
}

TEST_F(ExchangeCommand, ImportBadInput) {
  expect_refused({"import", "nowhere", "out"}, 2, "nowhere");
  expect_refused({"import", "run", "out"}, 2, "no .safetensors file");
  expect_refused({"import", step(10).string(), "out"}, 2, "reshard");
  write_file(at("short.safetensors"), "abc");
  expect_refused(
      {"import", "short.safetensors", "out"}, 4, "not a tensor file");
  std::string hostile(8, '\xff');
  write_file(at("hostile.safetensors"), hostile + "{}");
  expect_refused({"import", "hostile.safetensors", "out"}, 4, "byte 0");
  const auto single = (fs::path(WEFT_ORACLE) / "single.safetensors").string();
  write_file(at("file"), "x");
  expect_refused({"import", single, "file"}, 2, "file");
  expect_refused({"import", single, "out", "--step", "-1"}, 2, "--step");
  expect_refused({"import", single, "out", "--as", "pickle"}, 2, "--as");
  expect_refused(
      {"import", single, "out", "--rename", "^.*$=model.x"},
      2,
      "would both get the key");
  EXPECT_FALSE(fs::exists(at("out")));
}

// A file system that is full, as far as one can have without being root: no
// file may grow beyond 4 KiB.
TEST_F(ExchangeCommand, NoRoom) {
  for (const std::string words :
       {"reshard run out --mesh dp=1",
        "export run out --format safetensors",
        "export run out.safetensors",
        "import run/checkpoints/copy.safetensors out"}) {
    SCOPED_TRACE(words);
    if (!fs::exists(checkpoints() / "copy.safetensors")) {
      EXPECT_EQ(
          call({"export",
                "run",
                (checkpoints() / "copy.safetensors").string(),
                "--format",
                "safetensors"})
              .code,
          0);
    }
    const auto said = run(
        {"/bin/bash",
         "-c",
         "trap '' XFSZ; ulimit -f 4; exec \"$0\" checkpoint " + words,
         WEFT_WEFT});
    EXPECT_EQ(said.code, 1) << said.error;
    EXPECT_THAT(
        said.last_error_line,
        AllOf(StartsWith("ERROR 1 rank=0"), HasSubstr("File too large")));
    EXPECT_FALSE(fs::exists(at("out.safetensors")));
    EXPECT_THAT(checkpoint::list_steps(at("out")), IsEmpty());
    fs::remove_all(at("out"));
  }
}

} // namespace
} // namespace weft::test
