// `weft checkpoint ls|prune|reshard|import|export` as a user calls them.

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/foreign.h"
#include "checkpoint/store.h"
#include "checkpoint/tensor_file.h"
#include "tests/checkpoint/sample.h"
#include "tests/integration/process.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Said {
  std::optional<int> code;
  std::string output;
  std::string error;
  std::string last_error_line;

  json parsed() const {
    EXPECT_EQ(code, 0) << error;
    EXPECT_EQ(lines_of(output).size(), 1) << output;
    return json::parse(output);
  }
};

class ExchangeCommand : public ::testing::Test {
 protected:
  ExchangeCommand() {
    for (const int64_t step : {10, 20, 30}) {
      SampleOptions options;
      options.step = step;
      options.grid = {2, 2};
      write_sample(
          checkpoints(), sample_tensors(static_cast<uint64_t>(step)), options);
    }
  }

  fs::path at(const std::string& name) const { return scratch_.path() / name; }
  fs::path checkpoints() const { return at("run") / "checkpoints"; }
  fs::path step(int64_t n) const {
    return checkpoint::step_path(checkpoints(), n);
  }

  Said run(std::vector<std::string> words) const {
    Process process(std::move(words), scratch_.path());
    const auto code = process.wait();
    return {code, process.output(), process.error(), process.last_error_line()};
  }
  Said call(const std::vector<std::string>& words) const {
    std::vector<std::string> all = {WEFT_WEFT, "checkpoint"};
    all.insert(all.end(), words.begin(), words.end());
    return run(std::move(all));
  }
  // The one line that a refusal is.
  void expect_refused(
      const std::vector<std::string>& words,
      int code,
      const std::string& text) const {
    const auto said = call(words);
    SCOPED_TRACE(::testing::PrintToString(words));
    EXPECT_EQ(said.code, code) << said.error;
    EXPECT_EQ(said.output, "");
    EXPECT_THAT(
        said.last_error_line,
        AllOf(
            StartsWith("ERROR " + std::to_string(code) + " rank=0 op="),
            HasSubstr(text)));
  }
  void expect_equal_steps(const std::string& a, const std::string& b) const {
    const auto said = call({"diff", a, b, "--json"});
    EXPECT_EQ(said.code, 0) << said.output << said.error;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (const auto& each : checkpoint::list_steps(checkpoints())) {
      found.push_back(each.step);
    }
    return found;
  }

  ScratchFolder scratch_;
};

TEST_F(ExchangeCommand, LsSaysWhatIsValidAndHowItKnows) {
  auto bytes = read_file(step(20) / "shard-00001-00000.safetensors");
  bytes.back() ^= 1;
  write_file(step(20) / "shard-00001-00000.safetensors", bytes);
  const auto quick = call({"ls", "run", "--json"}).parsed()["steps"];
  EXPECT_EQ(quick[1]["valid"], "manifest");
  EXPECT_TRUE(quick[1]["damage"].is_null());
  const auto all = call({"ls", "run", "--verify", "--json"}).parsed()["steps"];
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
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.error, "");
  EXPECT_THAT(
      lines_of(text.output)[0],
      AllOf(HasSubstr("mesh"), HasSubstr("files"), HasSubstr("valid")));
  EXPECT_THAT(lines_of(text.output)[2], HasSubstr("damaged: shard-00001"));
}

TEST_F(ExchangeCommand, PruneKeepsTheNewestAndTheLatest) {
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

TEST_F(ExchangeCommand, PruneLeavesWhatIsReadAndWhereOthersWrite) {
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

TEST_F(ExchangeCommand, PruneBadInput) {
  expect_refused({"prune", "run"}, 2, "--keep");
  for (const char* keep : {"0", "-1", "x", "99999999999999999999"}) {
    expect_refused({"prune", "run", "--keep", keep}, 2, "--keep");
  }
  expect_refused({"prune", "nowhere", "--keep", "1"}, 2, "nowhere");
  EXPECT_FALSE(fs::exists(at("nowhere")));
  expect_refused({"prune", step(10).string(), "--keep", "1"}, 2, "inspect");
  EXPECT_THAT(steps(), ElementsAre(30, 20, 10));
}

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
      {"reshard", "run", "out", "--mesh", "dp"}, 2, "It is like dp=2,tp=4");
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
  const auto said = call({"export",
                          "run",
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
                          "--json"})
                        .parsed();
  EXPECT_EQ(said["tensors"], 7);
  const auto manifest = checkpoint::describe_foreign(
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
  refused({"run", "run"}, 2, "exists already");
  refused({"run", step(10).string()}, 2, "exists already");
  refused({"run", "out", "--include", "nothing.*"}, 2, "matches no tensor");
  refused({"run", "out", "--exclude", "**"}, 2, "no tensor is left");
  refused({"run", "out", "--rename", "x"}, 2, "--rename");
  refused({"run", "out", "--rename", "(=x"}, 2, "(");
  refused({"run", "out", "--rename", ".*=x"}, 2, "both become");
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
      "exists already");
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
  expect_refused({"import", "short.safetensors", "out"}, 4, "no tensor file");
  std::string hostile(8, '\xff');
  write_file(at("hostile.safetensors"), hostile + "{}");
  expect_refused({"import", "hostile.safetensors", "out"}, 4, "byte 0");
  const auto single = (fs::path(WEFT_ORACLE) / "single.safetensors").string();
  write_file(at("file"), "x");
  expect_refused({"import", single, "file"}, 2, "file");
  expect_refused({"import", single, "out", "--step", "-1"}, 2, "--step");
  expect_refused({"import", single, "out", "--as", "pickle"}, 2, "--as");
  expect_refused(
      {"import", single, "out", "--rename", "^.*$=model.x"}, 2, "both become");
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(ExchangeCommand, KeysOfManifests) {
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
  expect_refused(
      {"diff", "signed", "run", "--hmac_key_file", "key"}, 4, "HMAC");
  for (const char* file : {"empty", "nowhere", "run"}) {
    expect_refused({"inspect", "again", "--hmac_key_file", file}, 2, file);
  }
}

TEST_F(ExchangeCommand, DiffNamesTheLargestFirst) {
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

// A file system that is full, as far as one can have without being root: no
// file may grow beyond 4 KiB.
TEST_F(ExchangeCommand, NoRoom) {
  for (const std::string words :
       {"reshard run out --mesh dp=1",
        "export run out --format safetensors",
        "export run out.safetensors --format safetensors",
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
         "trap '' XFSZ; ulimit -f 4; exec " + std::string(WEFT_WEFT) +
             " checkpoint " + words});
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
