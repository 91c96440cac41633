// `weft checkpoint ls|prune|diff` and its keys, as a user calls them.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/store/store.h"
#include "tests/checkpoint/command/weft_checkpoint.h"
#include "tests/checkpoint/sample.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using StoreCommand = WeftCheckpoint;

TEST_F(StoreCommand, LsSaysWhatIsValidAndHowItKnows) {
  auto bytes = read_file(step(20) / "shard-00001-00000.safetensors");
  bytes.back() ^= 1;
  write_file(step(20) / "shard-00001-00000.safetensors", bytes);
  const auto quick = call({"ls", "run", "--json"}).parsed()["steps"];
  EXPECT_EQ(quick[1]["valid"], "manifest");
  EXPECT_TRUE(quick[1]["damage"].is_null());
  const auto verified = call({"ls", "run", "--verify", "--json"});
  EXPECT_EQ(verified.code, 4);
  const auto all = json::parse(verified.output)["steps"];
  EXPECT_EQ(all[0]["valid"], "bytes");
  EXPECT_TRUE(all[1]["valid"].is_null());
  EXPECT_THAT(
      all[1]["damage"].get<std::string>(),
      HasSubstr("shard-00001-00000.safetensors"));
  for (const char* key :
       {"step",
        "path",
        "created",
        "bytes",
        "mesh",
        "tensors",
        "files",
        "valid",
        "damage",
        "latest"}) {
    EXPECT_TRUE(all[0].contains(key)) << key;
  }
  const auto text = call({"ls", "run", "--verify"});
  EXPECT_EQ(text.code, 4);
  EXPECT_THAT(text.error, HasSubstr("step 20: shard-00001"));
  EXPECT_THAT(
      lines_of(text.output)[0],
      AllOf(HasSubstr("mesh"), HasSubstr("files"), HasSubstr("valid")));
  EXPECT_THAT(lines_of(text.output)[2], HasSubstr("damaged: shard-00001"));
}

TEST_F(StoreCommand, AFailedReshardLeavesNothing) {
  auto bytes = read_file(step(20) / "shard-00001-00000.safetensors");
  bytes.back() ^= 1;
  write_file(step(20) / "shard-00001-00000.safetensors", bytes);
  const auto words = [&](const std::string& to) {
    return std::vector<std::string>{
        "reshard", step(20).string(), to, "--mesh", "dp=2"};
  };
  EXPECT_EQ(call(words("new/checkpoints")).code, 4);
  EXPECT_FALSE(fs::exists(at("new/checkpoints")));
  fs::create_directory(at("mine"));
  EXPECT_EQ(call(words("mine")).code, 4);
  EXPECT_TRUE(fs::is_empty(at("mine")));
}

TEST_F(StoreCommand, PruneKeepsTheNewestAndTheLatest) {
  write_file(checkpoints() / "latest", "step-10\n");
  const auto would =
      call({"prune", "run", "--keep", "1", "--dry-run", "--json"}).parsed();
  EXPECT_EQ(would["dry_run"], true);
  EXPECT_EQ(would["deleted"], json({20}));
  EXPECT_THAT(steps(), ElementsAre(30, 20, 10));
  const auto did = call({"prune", "run", "--keep", "1", "--json"}).parsed();
  EXPECT_EQ(did["deleted"], json({20}));
  EXPECT_EQ(did["kept"], json({30, 10}));
  EXPECT_EQ(did["pinned"], json::array());
  EXPECT_THAT(steps(), ElementsAre(30, 10));
  EXPECT_THAT(
      call({"prune", "run", "--keep", "1"}).output, HasSubstr("nothing"));
}

TEST_F(StoreCommand, PruneLeavesWhatIsReadAndWhereOthersWrite) {
  {
    const checkpoint::StepPin pin(step(10));
    const auto said = call({"prune", "run", "--keep", "1", "--json"}).parsed();
    EXPECT_EQ(said["deleted"], json({20}));
    EXPECT_EQ(said["pinned"], json({10}));
    EXPECT_THAT(
        call({"prune", "run", "--keep", "1"}).output,
        HasSubstr("step 10 stayed"));
  }
  const checkpoint::StoreLock lock(checkpoints());
  expect_refused({"prune", "run", "--keep", "1"}, 2, "process");
  EXPECT_THAT(steps(), ElementsAre(30, 10));
}

TEST_F(StoreCommand, PruneBadInput) {
  expect_refused({"prune", "run"}, 2, "--keep");
  for (const char* keep : {"0", "-1", "x", "99999999999999999999"}) {
    expect_refused({"prune", "run", "--keep", keep}, 2, "--keep");
  }
  expect_refused({"prune", "nowhere", "--keep", "1"}, 2, "nowhere");
  EXPECT_FALSE(fs::exists(at("nowhere")));
  expect_refused({"prune", step(10).string(), "--keep", "1"}, 2, "inspect");
  EXPECT_THAT(steps(), ElementsAre(30, 20, 10));
}

TEST_F(StoreCommand, KeysOfManifests) {
  write_file(at("key"), "a secret of ours\n");
  write_file(at("other"), "a guess of theirs");
  write_file(at("empty"), "");
  const auto single = (fs::path(WEFT_ORACLE) / "single.safetensors").string();
  EXPECT_EQ(
      call({"import", single, "signed", "--hmac-key-file", "key"}).code, 0);
  EXPECT_EQ(call({"verify", "signed", "--hmac_key_file", "key"}).code, 0);
  EXPECT_EQ(call({"verify", "signed", "--hmac_key_file", "other"}).code, 4);
  EXPECT_EQ(call({"verify", "signed"}).code, 0);
  EXPECT_EQ(call({"verify", "run", "--hmac_key_file", "key"}).code, 4);
  EXPECT_EQ(
      call({"reshard",
            "signed",
            "again",
            "--mesh",
            "dp=2",
            "--hmac_key_file",
            "key"})
          .code,
      0);
  const std::vector<std::string> keyed = {"--hmac_key_file", "key"};
  for (std::vector<std::string> words :
       {std::vector<std::string>{"diff", "signed", "again"},
        {"inspect", "again"},
        {"inspect", "again", "model.scale"},
        {"ls", "again", "--verify"}}) {
    words.insert(words.end(), keyed.begin(), keyed.end());
    EXPECT_EQ(call(words).code, 0) << ::testing::PrintToString(words);
  }
  expect_refused({"inspect", "again", "--hmac_key_file", "other"}, 4, "HMAC");
  const auto listed =
      call({"ls", "again", "--verify", "--hmac_key_file", "other"});
  EXPECT_EQ(listed.code, 4);
  EXPECT_THAT(listed.output, HasSubstr("damaged: "));
  EXPECT_THAT(listed.last_error_line, HasSubstr("HMAC"));
  expect_refused(
      {"diff", "signed", "run", "--hmac_key_file", "key"}, 4, "HMAC");
  for (const char* file : {"empty", "nowhere", "run"}) {
    expect_refused({"inspect", "again", "--hmac_key_file", file}, 2, file);
  }
}

TEST_F(StoreCommand, DiffNamesTheLargestFirst) {
  auto tensors = sample_tensors(2);
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point()) {
      tensors[name] = at::zeros_like(tensor);
    }
  }
  auto changed = tensors;
  const auto change = [&](const std::string& name, double by) {
    changed[name] = tensors[name].clone();
    changed[name].view(-1)[0] = by;
  };
  change("model.cube", 0.5);
  change("model.embed.weight", 0.25);
  change("model.uneven.weight", 2);
  changed.erase("model.steps");
  write_sample(at("a"), tensors);
  write_sample(at("b"), changed);
  const auto said = call({"diff", "a", "b"});
  EXPECT_EQ(said.code, 1);
  const auto lines = lines_of(said.output);
  ASSERT_EQ(lines.size(), 4);
  EXPECT_THAT(lines[0], StartsWith("model.steps: only in A"));
  EXPECT_THAT(lines[1], StartsWith("model.uneven.weight"));
  EXPECT_THAT(lines[2], StartsWith("model.cube"));
  EXPECT_THAT(lines[3], StartsWith("model.embed.weight"));
}

} // namespace
} // namespace weft::test
