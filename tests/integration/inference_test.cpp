// weft eval and weft generate: the real programs. inference_meshes_test.cpp has
// more meshes, whose ranks are threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/process_fixture.h"
#include "tests/support/temp_folder.h"

namespace weft::test {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr const char* kUneven = R"(name: uneven
mesh: {dp: -1, tp: 1}
model: {dim: 48, layers: 2, heads: 6, kv_heads: 6, ffn_dim: 152,
        vocab_size: 331}
data: {paths: [corpus.txt], sequence_length: 40}
train: {steps: 4, global_batch_size: 12, micro_batch_size: 2}
optimizer: {lr: 1.0e-2}
)";

std::vector<std::vector<int>> tokens_of(const ordered_json& result) {
  std::vector<std::vector<int>> all;
  for (const auto& sample : result.at("samples")) {
    all.push_back(sample.at("tokens").get<std::vector<int>>());
  }
  return all;
}

class InferenceTest : public ProcessTest {
 protected:
  InferenceTest() { write("uneven.yaml", kUneven); }

  static Words
  on_mesh(const std::string& command, int dp, int tp, const Words& more) {
    Words words{
        WEFT_WEFT, command, "uneven.yaml", "mesh.tp=" + std::to_string(tp)};
    words.insert(words.end(), more.begin(), more.end());
    return dp * tp == 1 ? words : launched(dp * tp, words);
  }

  static void SetUpTestSuite() {
    trained_ = std::make_unique<test::TempFolder>();
  }
  static void TearDownTestSuite() { trained_.reset(); }

  /// Trains four steps, or copies what another test trained.
  void train_it() const {
    const auto kept = *trained_ / "outputs";
    const auto own = folder_ / "outputs";
    if (fs::exists(kept)) {
      fs::copy(kept, own, fs::copy_options::recursive);
      return;
    }
    expect_success({WEFT_WEFT, "train", "uneven.yaml"});
    fs::copy(own, kept, fs::copy_options::recursive);
  }

  /// What a command prints with --json.
  ordered_json json_of(const std::string& command, int dp, int tp, Words more)
      const {
    more.emplace_back("--json");
    Process run(on_mesh(command, dp, tp, more), folder_);
    EXPECT_EQ(run.wait(), 0) << run.error();
    const auto lines = lines_of(run.output());
    EXPECT_THAT(lines, SizeIs(1)) << run.output();
    return lines.empty() ? ordered_json() : ordered_json::parse(lines[0]);
  }

  double loss(int dp, int tp, const Words& more = {}) const {
    return json_of("eval", dp, tp, more).at("loss");
  }

  std::string refused(
      const Words& words,
      int code = 2,
      const std::string& output = "") const {
    Process run(words, folder_);
    EXPECT_EQ(run.wait(), code) << run.output() << run.error();
    EXPECT_EQ(run.output(), output);
    return run.last_error_line();
  }

  std::string eval_refused(const Words& more, int code = 2) const {
    return refused(on_mesh("eval", 1, 1, more), code);
  }

  std::string generate_refused(const Words& more, int code = 2) const {
    return refused(on_mesh("generate", 1, 1, more), code);
  }

  void write_tokens(
      const std::string& name,
      const std::vector<uint16_t>& tokens) const {
    std::string bytes;
    for (const uint16_t token : tokens) {
      bytes += static_cast<char>(token & 0xff);
      bytes += static_cast<char>(token >> 8);
    }
    write(name, bytes);
  }

  /// The corpus as tokens, `count` of them.
  std::vector<uint16_t> corpus_tokens(size_t count) const {
    std::vector<uint16_t> tokens;
    for (const char c :
         test::read_text(folder_ / "corpus.txt").substr(0, count)) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
    return tokens;
  }

  /// Everything below the run's folder, with sizes.
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      names.push_back(
          entry.path().string() + " " +
          (entry.is_regular_file() ? std::to_string(entry.file_size()) : ""));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  static inline std::unique_ptr<test::TempFolder> trained_;
};

// ---- eval -------------------------------------------------------------------

TEST_F(InferenceTest, EvalGivesTheSameLossOnMeshes) {
  train_it();
  // 13 windows and a rest: batches of 2 leave replicas with one, or none.
  write_tokens("tokens.bin", corpus_tokens(13 * 40 + 1 + 17));
  const auto before = listing();
  const auto one = json_of("eval", 1, 1, {"--tokens", "tokens.bin"});
  EXPECT_EQ(one.at("tokens"), 13 * 40);
  const double expected = one.at("loss");
  EXPECT_GT(expected, 1);
  EXPECT_LT(expected, 5.5); // ln 331 is 5.8
  EXPECT_NEAR(one.at("perplexity").get<double>(), std::exp(expected), 1e-6);
  for (const auto& [dp, tp] :
       std::vector<std::pair<int, int>>{{1, 3}, {2, 2}}) {
    EXPECT_NEAR(
        loss(dp, tp, {"--tokens", "tokens.bin"}), expected, 2e-5 * expected)
        << "dp=" << dp << " tp=" << tp;
  }
  // However the batches are cut.
  EXPECT_NEAR(
      loss(1, 1, {"--tokens", "tokens.bin", "train.micro_batch_size=5"}),
      expected,
      2e-5 * expected);
  EXPECT_EQ(listing(), before);
}

// A size that does not divide the ranks shards over all of them.
TEST_F(InferenceTest, AShardedModelIsEvaluatedAndContinuedAsAWholeOne) {
  train_it();
  write_tokens("tokens.bin", corpus_tokens(13 * 40 + 1));
  const Words prompts{
      "--prompt=int value_",
      "--prompt=x",
      "--num-samples=2",
      "--max-new-tokens=20",
      "--top-k=40",
      "--seed=11"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words tokens{"--tokens=tokens.bin"};
  const double expected = loss(1, 1, tokens);
  const auto continued = tokens_of(json_of("generate", 1, 1, prompts));
  for (const auto& [replicas, tp, shards] : {std::tuple(2, 2, 2), {1, 1, 4}}) {
    const Words sharded{"mesh.dp_shard=" + std::to_string(shards)};
    SCOPED_TRACE(testing::Message() << replicas << "x" << tp << sharded[0]);
    EXPECT_NEAR(
        loss(replicas, tp, with(tokens, sharded)), expected, 2e-5 * expected);
    EXPECT_EQ(
        tokens_of(json_of("generate", replicas, tp, with(prompts, sharded))),
        continued);
  }
}

TEST_F(InferenceTest, EvalWithoutTokensTakesTheHeldOutData) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    // Two batches are all 10 windows of it.
    const Words words{
        "train.dtype=" + dtype,
        "output_dir=" + dtype,
        "train.global_batch_size=5",
        "train.micro_batch_size=5",
        "eval.batches=2"};
    Words train{WEFT_WEFT, "train", "uneven.yaml"};
    train.insert(train.end(), words.begin(), words.end());
    expect_success(train);
    const double measured = metrics(dtype).back().at("eval_loss");
    for (const int dp : {1, 3}) {
      const auto result = json_of(
          "eval", dp, 1, {words[0], words[1], "train.micro_batch_size=2"});
      EXPECT_EQ(result.at("samples"), 10);
      EXPECT_EQ(result.at("tokens"), 400);
      EXPECT_NEAR(result.at("loss").get<double>(), measured, 1e-5 * measured)
          << dtype << " dp=" << dp;
    }
  }
}

TEST_F(InferenceTest, EvalWithTokensNeedsNoData) {
  train_it();
  write_tokens("tokens.bin", corpus_tokens(500));
  const double expected = loss(1, 1, {"--tokens", "tokens.bin"});
  auto recipe = replaced(kUneven, "paths: [corpus.txt], ", "");
  write("bare.yaml", replaced(recipe, "name: uneven", "name: bare"));
  fs::remove(folder_ / "corpus.txt");
  Process run(
      {WEFT_WEFT,
       "eval",
       "bare.yaml",
       "--tokens",
       "tokens.bin",
       "--checkpoint",
       "outputs/uneven",
       "--json"},
      folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(
      ordered_json::parse(run.output()).at("loss").get<double>(), expected);
}

TEST_F(InferenceTest, AHuggingFaceFolderNeedsNoCheckpoint) {
  train_it();
  write_tokens("tokens.bin", corpus_tokens(500));
  const double expected = loss(1, 1, {"--tokens", "tokens.bin"});
  const Words greedy{"--prompt-tokens=97,98", "--temperature=0"};
  const auto continued = tokens_of(json_of("generate", 1, 1, greedy));
  Process out(
      {WEFT_WEFT, "checkpoint", "export", "outputs/uneven", "folder"}, folder_);
  ASSERT_EQ(out.wait(), 0) << out.error();
  fs::remove_all(folder_ / "outputs");
  write(
      "uneven.yaml",
      "mesh: {dp: -1, tp: 1}\n"
      "model: {from: folder}\n"
      "data: {sequence_length: 40}\n");
  for (const auto& [dp, tp] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 2}}) {
    EXPECT_NEAR(
        loss(dp, tp, {"--tokens", "tokens.bin"}), expected, 2e-5 * expected);
    EXPECT_EQ(tokens_of(json_of("generate", dp, tp, greedy)), continued);
  }
  // Which tokens a text would be nobody says.
  EXPECT_THAT(
      generate_refused({"--prompt", "ab"}), HasSubstr("needs a tokenizer"));
}

TEST_F(InferenceTest, EvalFindsCheckpointsAsTrainDoes) {
  train_it();
  expect_success({WEFT_WEFT, "train", "uneven.yaml", "train.steps=8"});
  const auto with = [&](const std::string& checkpoint) {
    return loss(1, 1, {"--checkpoint", checkpoint});
  };
  const double newest = loss(1, 1);
  EXPECT_EQ(with("outputs/uneven/checkpoints/step-8"), newest);
  EXPECT_EQ(with("outputs/uneven/checkpoints"), newest);
  EXPECT_EQ(with("outputs/uneven"), newest);
  const double older = with("outputs/uneven/checkpoints/step-4");
  EXPECT_NE(older, newest);
  // A damaged one is named and skipped, but stays where it is.
  for (const auto& entry : fs::recursive_directory_iterator(
           folder_ / "outputs/uneven/checkpoints/step-8")) {
    if (entry.path().extension() == ".safetensors") {
      fs::resize_file(entry.path(), entry.file_size() / 2);
    }
  }
  const auto before = listing();
  Process run(on_mesh("eval", 1, 1, {"--json"}), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(ordered_json::parse(run.output()).at("loss").get<double>(), older);
  EXPECT_THAT(
      run.error(), HasSubstr("cannot load outputs/uneven/checkpoints/step-8"));
  EXPECT_EQ(listing(), before);
  EXPECT_THAT(
      eval_refused({"--checkpoint", "outputs/uneven/checkpoints/step-8"}, 4),
      StartsWith("ERROR 4 "));
}

TEST_F(InferenceTest, EvalRefusesWhatIsNoModelToMeasure) {
  EXPECT_THAT(
      eval_refused({}),
      HasSubstr("outputs/uneven/checkpoints has no checkpoint"));
  EXPECT_THAT(
      eval_refused({"--checkpoint", "nowhere"}),
      HasSubstr("--checkpoint: \"nowhere\" has no checkpoint"));
  train_it();
  EXPECT_THAT(
      eval_refused({"model.heads=12"}),
      AllOf(
          HasSubstr("belongs to another model"),
          HasSubstr("model.heads is 6 there and 12 here")));
  // The tensors fit; what they mean does not.
  EXPECT_THAT(
      eval_refused({"model.rope_theta=500000"}),
      HasSubstr("model.rope_theta is "));
  EXPECT_THAT(
      eval_refused({"model.layers=3"}),
      HasSubstr("model.layers is 2 there and 3 here"));
  // What only training knows does not matter.
  EXPECT_GT(loss(1, 1, {"model.attention_dropout=0.5", "seed=3"}), 0);
  EXPECT_THAT(eval_refused({"mesh.dp=2"}), HasSubstr("needs 2 ranks"));
  EXPECT_THAT(eval_refused({"--chekpoint", "x"}), HasSubstr("--checkpoint"));
}

TEST_F(InferenceTest, EvalRefusesTokensThatCannotBe) {
  train_it();
  auto tokens = corpus_tokens(200);
  write_tokens("few.bin", corpus_tokens(40));
  EXPECT_THAT(
      eval_refused({"--tokens", "few.bin"}),
      AllOf(HasSubstr("few.bin: got 40 tokens"), HasSubstr("= 41")));
  write_tokens("just.bin", corpus_tokens(41));
  EXPECT_EQ(json_of("eval", 1, 1, {"--tokens", "just.bin"}).at("tokens"), 40);
  tokens[150] = 331;
  write_tokens("beyond.bin", tokens);
  EXPECT_THAT(
      eval_refused({"--tokens", "beyond.bin"}),
      AllOf(HasSubstr("beyond.bin"), HasSubstr("300"), HasSubstr("331")));
  write("odd.bin", std::string(201, 'a'));
  EXPECT_THAT(eval_refused({"--tokens", "odd.bin"}), HasSubstr("odd.bin"));
  write("empty.bin", "");
  EXPECT_THAT(eval_refused({"--tokens", "empty.bin"}), HasSubstr("empty.bin"));
  EXPECT_THAT(
      eval_refused({"--tokens", "nowhere.bin"}), HasSubstr("nowhere.bin"));
  EXPECT_THAT(eval_refused({"--tokens", "."}), StartsWith("ERROR 2 "));
}

// ---- generate ---------------------------------------------------------------

TEST_F(InferenceTest, GenerateGivesTheSameTokensOnMeshes) {
  train_it();
  const Words words{
      "--prompt",
      "int value_",
      "--prompt",
      "x",
      "--num-samples",
      "2",
      "--max-new-tokens",
      "60",
      "--top-k",
      "40",
      "--seed",
      "11"};
  const auto before = listing();
  const auto expected = json_of("generate", 1, 1, words);
  EXPECT_EQ(expected.at("seed"), 11);
  ASSERT_THAT(expected.at("samples"), SizeIs(4));
  EXPECT_EQ(expected.at("samples")[3].at("prompt"), 1);
  EXPECT_THAT(expected.at("samples")[0].at("tokens"), SizeIs(60));
  EXPECT_EQ(expected.at("samples")[0].at("finish_reason"), "length");
  EXPECT_EQ(json_of("generate", 1, 1, words), expected);
  for (const auto& [dp, tp] :
       std::vector<std::pair<int, int>>{{1, 3}, {2, 2}}) {
    EXPECT_EQ(
        tokens_of(json_of("generate", dp, tp, words)), tokens_of(expected))
        << "dp=" << dp << " tp=" << tp;
  }
  auto anew = words;
  anew.emplace_back("--no-cache");
  EXPECT_EQ(tokens_of(json_of("generate", 1, 1, anew)), tokens_of(expected));
  anew.back() = "--seed=12";
  anew.erase(anew.end() - 3, anew.end() - 1);
  EXPECT_NE(tokens_of(json_of("generate", 1, 1, anew)), tokens_of(expected));
  EXPECT_EQ(listing(), before);
}

TEST_F(InferenceTest, GenerateWritesPromptAndTextToStdout) {
  train_it();
  const Words greedy{
      "--temperature", "0", "--max-new-tokens", "20", "--prompt", "int v"};
  const auto json = json_of("generate", 1, 1, greedy);
  const std::string text = json.at("samples")[0].at("text");
  for (const auto& [dp, tp] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}}) {
    Process run(on_mesh("generate", dp, tp, greedy), folder_);
    ASSERT_EQ(run.wait(), 0) << run.error();
    EXPECT_EQ(run.output(), "int v" + text + "\n");
    EXPECT_THAT(run.error(), HasSubstr("tokens/s"));
  }
  auto several = greedy;
  several.insert(several.end(), {"--num-samples", "2"});
  Process run(on_mesh("generate", 1, 1, several), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(
      run.output(),
      "--- 0 ---\nint v" + text + "\n--- 1 ---\nint v" + text + "\n");
}

TEST_F(InferenceTest, GenerateTakesTokensAndFiles) {
  train_it();
  const Words greedy{"--temperature=0", "--max-new-tokens=8"};
  const auto with = [&](Words more) {
    more.insert(more.end(), greedy.begin(), greedy.end());
    return json_of("generate", 1, 1, more);
  };
  const auto expected = with({"--prompt", "ab"});
  EXPECT_EQ(with({"--prompt-tokens", "97,98"}), expected);
  write("prompt.txt", "ab");
  EXPECT_EQ(with({"--prompt-file", "prompt.txt"}), expected);
  // Longer than the sequences of training.
  const auto longer = tokens_of(json_of(
      "generate",
      1,
      1,
      {"--prompt", "ab", "--temperature=0", "--max-new-tokens=100"}))[0];
  EXPECT_THAT(longer, SizeIs(100));
  const auto tokens = tokens_of(expected)[0];
  EXPECT_EQ(std::vector<int>(longer.begin(), longer.begin() + 8), tokens);
  const auto ended =
      with({"--prompt", "ab", "--eos-token-id", std::to_string(tokens[2])});
  EXPECT_EQ(ended.at("samples")[0].at("finish_reason"), "eos");
  EXPECT_LE(tokens_of(ended)[0].size(), 3u);
}

TEST_F(InferenceTest, GenerateRefusesWhatCannotBe) {
  EXPECT_THAT(
      generate_refused({"--prompt", "a"}),
      HasSubstr("outputs/uneven/checkpoints has no checkpoint"));
  EXPECT_THAT(generate_refused({}), HasSubstr("no prompt was given"));
  EXPECT_THAT(
      generate_refused({"--prompt", "a", "--prompt-tokens", "1"}),
      HasSubstr("several kinds"));
  EXPECT_THAT(
      generate_refused({"--prompt", ""}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(
      generate_refused({"--prompt-tokens", "1,331"}),
      HasSubstr("prompt token 1 is 331"));
  EXPECT_THAT(
      generate_refused({"--prompt-tokens", "1,x"}),
      HasSubstr("--prompt-tokens"));
  EXPECT_THAT(
      generate_refused({"--prompt-file", "nowhere"}),
      HasSubstr("--prompt-file: nowhere"));
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"--temperature", "-1"},
           {"--temperature", "nan"},
           {"--top-k", "-1"},
           {"--top-p", "1.5"},
           {"--top-p", "-0.1"},
           {"--max-new-tokens", "0"},
           {"--num-samples", "0"},
           {"--seed", "-1"},
           {"--eos-token-id", "x"}}) {
    EXPECT_THAT(
        generate_refused({"--prompt", "a", flag, value}), HasSubstr(flag))
        << flag << " " << value;
  }
  EXPECT_THAT(
      generate_refused({"--prompt", "a", "--tokenizer", "nowhere.model"}),
      HasSubstr("nowhere.model"));
}

// Each by its own command line or file: nobody waits for a token or a loss that
// another rank does not make.
TEST_F(InferenceTest, RanksThatWereToldOtherThingsAreRefused) {
  train_it();
  const auto line_of = [&](const std::string& command) {
    return refused(
        launched(
            2, {"sh", "-c", "exec \"$0\" " + command + " --json", WEFT_WEFT}),
        5);
  };
  for (const std::string flag :
       {"--prompt-tokens 9$RANK",
        "--prompt-tokens 97 --max-new-tokens 1$RANK",
        "--prompt-tokens 97 --num-samples 1$RANK",
        "--prompt-tokens 97 --eos-token-id 1$RANK",
        "--prompt-tokens 97 --seed 1$RANK"}) {
    EXPECT_THAT(line_of("generate uneven.yaml " + flag), HasSubstr("prompts"))
        << flag;
  }
  write_tokens("tokens0.bin", corpus_tokens(500));
  write_tokens("tokens1.bin", corpus_tokens(700));
  EXPECT_THAT(
      line_of("eval uneven.yaml --tokens tokens$RANK.bin"), HasSubstr("data"));
}

TEST_F(InferenceTest, GenerateSaysWhatItLeavesOut) {
  train_it();
  const Words words{
      "--prompt", "ab", "--temperature=1e6", "--max-new-tokens=40", "--seed=1"};
  const auto tokens = tokens_of(json_of("generate", 1, 1, words)).at(0);
  const auto beyond =
      std::ranges::count_if(tokens, [](int token) { return token >= 256; });
  ASSERT_GT(beyond, 0); // of 331, each as likely
  Process run(on_mesh("generate", 1, 1, words), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_THAT(
      run.error(),
      HasSubstr(std::to_string(beyond) + " tokens are not among the 256"));
}

TEST_F(InferenceTest, GenerateWritesNumbersWithoutATokenizer) {
  train_it();
  const Words words{
      "--prompt-tokens=97,98",
      "--temperature=0",
      "--max-new-tokens=2",
      "data.type=tokens"};
  const auto tokens = tokens_of(json_of("generate", 1, 1, words)).at(0);
  Process run(on_mesh("generate", 1, 1, words), folder_);
  ASSERT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(
      run.output(),
      "97 98 " + std::to_string(tokens.at(0)) + " " +
          std::to_string(tokens.at(1)) + "\n");
  EXPECT_THAT(
      run.error(), HasSubstr("numbers, without a tokenizer: the recipe"));
}

TEST_F(InferenceTest, GenerateRefusesModelsThatContinueNothing) {
  write(
      "images.yaml",
      "model: {type: mlp, layers: 1, ffn_dim: 8}\n"
      "data: {type: digits, paths: [digits.csv.gz]}\n");
  EXPECT_THAT(
      refused({WEFT_WEFT, "generate", "images.yaml", "--prompt", "a"}),
      HasSubstr("classifies images"));
  EXPECT_THAT(
      refused({WEFT_WEFT, "eval", "images.yaml", "--tokens", "a.bin"}),
      HasSubstr("reads images"));
}

} // namespace
} // namespace weft::test
