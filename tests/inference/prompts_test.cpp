// What is continued, with whose tokens, and how they become text.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference/prompts.h"
#include "inference/text_stream.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::inference {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using TokenLists = std::vector<std::vector<int64_t>>;

// ---- text -------------------------------------------------------------------

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const char c : text) {
    tokens.push_back(static_cast<unsigned char>(c));
  }
  return tokens;
}

TEST(TextStream, GivesWholeCharactersAsTheyCome) {
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  TextStream stream(tokenizer.get(), bytes_of("before"));
  std::vector<std::string> parts;
  for (const int64_t token : bytes_of("a\xC3\xA9\xE2\x82\xAC")) {
    parts.push_back(stream.add(token));
  }
  EXPECT_THAT(parts, ElementsAre("a", "", "\xC3\xA9", "", "", "\xE2\x82\xAC"));
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.finish(), "\xE2");
}

TEST(TextStream, ForgetsWhatIsLongAgoAndNothingElse) {
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += std::to_string(i * 7919) + "\xC3\xA9";
  }
  const auto tokens = bytes_of(text);
  EXPECT_EQ(text_after(tokenizer.get(), tokens, tokens), text);
  EXPECT_EQ(
      text_after(nullptr, tokens, std::vector<int64_t>{5, 17, 2}), "5 17 2");
  // Models may have more tokens than their tokenizer.
  EXPECT_EQ(
      text_after(tokenizer.get(), {}, std::vector<int64_t>{65, 300, 66}), "AB");
}

TEST(TextStream, KnowsUnfinishedCharacters) {
  EXPECT_EQ(unfinished_bytes(""), 0);
  EXPECT_EQ(unfinished_bytes("abc"), 0);
  EXPECT_EQ(unfinished_bytes("a\xC3"), 1);
  EXPECT_EQ(unfinished_bytes("a\xE2\x82"), 2);
  EXPECT_EQ(unfinished_bytes("\xF0\x9F\x98"), 3);
  EXPECT_EQ(unfinished_bytes("\xF0\x9F\x98\x80"), 0);
  // Not UTF-8: nothing to wait for.
  EXPECT_EQ(unfinished_bytes("\x80\x80\x80\x80"), 0);
}

// ---- prompts ----------------------------------------------------------------

config::Recipe generating_recipe(const std::string& more) {
  auto recipe = train::parse_recipe(fixtures::min_and(more), "test.yaml");
  train::validate(recipe, 1);
  return recipe;
}

TEST(Prompts, BecomeTokens) {
  const auto recipe = generating_recipe("");
  const auto tokenizer = find_tokenizer(recipe, std::nullopt);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(
      prompt_tokens(recipe, {.texts = {"ab", "c"}}, tokenizer.get()),
      (TokenLists{{97, 98}, {99}}));
  EXPECT_EQ(
      prompt_tokens(
          recipe, {.tokens = std::vector<int64_t>{1, 2}}, tokenizer.get()),
      (TokenLists{{1, 2}}));
  const fixtures::TempFolder folder;
  const auto file = folder.write("prompt.txt", "xy");
  EXPECT_EQ(
      prompt_tokens(recipe, {.file = file}, tokenizer.get()),
      (TokenLists{{120, 121}}));
}

TEST(Prompts, AreRefusedWithTheReason) {
  const auto recipe = generating_recipe("");
  const auto tokenizer = find_tokenizer(recipe, std::nullopt);
  const auto refusal = [&](const PromptWords& words, bool with = true) {
    return fixtures::message_of<mesh::UsageError>([&] {
      prompt_tokens(recipe, words, with ? tokenizer.get() : nullptr);
    });
  };
  EXPECT_THAT(refusal({}), HasSubstr("no prompt was given"));
  EXPECT_THAT(
      refusal({.texts = {"a"}, .tokens = std::vector<int64_t>{1}}),
      HasSubstr("several kinds"));
  EXPECT_THAT(refusal({.texts = {""}}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(refusal({.texts = {"a"}}, false), HasSubstr("needs a tokenizer"));
  EXPECT_THAT(
      refusal({.tokens = std::vector<int64_t>{1, 256}}),
      HasSubstr(
          "prompt token 1 is 256, but the model's vocabulary has 256 tokens"));
  EXPECT_THAT(
      refusal({.tokens = std::vector<int64_t>{-1}}),
      HasSubstr("prompt token 0 is -1"));
  EXPECT_THAT(refusal({.file = "/nowhere"}), HasSubstr("is not a file"));
}

TEST(Prompts, ModelsWithPositionsHaveSoMuchRoom) {
  const auto gpt2 = train::parse_recipe(
      "model: {type: gpt2, dim: 64, layers: 2, heads: 4, ffn_dim: 128,\n"
      "  max_position_embeddings: 20}\n"
      "data: {paths: [text.txt], sequence_length: 16}\n",
      "test.yaml");
  const TokenLists prompts{{1, 2}, std::vector<int64_t>(15, 3)};
  EXPECT_EQ(clamp_new_tokens(gpt2, prompts, 5, 128), 5);
  EXPECT_EQ(clamp_new_tokens(gpt2, prompts, std::nullopt, 128), 5);
  const auto refusal = [&](const TokenLists& given, int64_t wanted) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { clamp_new_tokens(gpt2, given, wanted, 128); });
  };
  EXPECT_THAT(
      refusal(prompts, 6),
      HasSubstr("15 tokens plus 6 new tokens exceeds the model's 20 positions. "
                "--max-new-tokens can be at most 5."));
  EXPECT_THAT(
      refusal({std::vector<int64_t>(20, 3)}, 1),
      HasSubstr("Give a shorter prompt."));
  EXPECT_EQ(recipe_to_generate(gpt2, 20).data.sequence_length, 16);
  // Rotary positions go on.
  const auto llama = generating_recipe("");
  EXPECT_EQ(clamp_new_tokens(llama, prompts, 1000, 128), 1000);
  const auto longer = recipe_to_generate(llama, 1015);
  EXPECT_EQ(longer.data.sequence_length, 1015);
  EXPECT_FALSE(longer.tp.sequence_parallel);
}

TEST(Prompts, TokenizersOfOtherModelsAreRefused) {
  auto recipe = generating_recipe("");
  recipe.model.vocab_size = 100;
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { find_tokenizer(recipe, std::nullopt); }),
      HasSubstr("has more tokens than the model's vocabulary of 100"));
}

TEST(Prompts, EndTokensAreThoseOfTheModelsFolder) {
  const fixtures::TempFolder folder;
  folder.write("generation_config.json", R"({"eos_token_id": [7, 9]})");
  folder.write("config.json", R"({"eos_token_id": 3})");
  auto recipe = generating_recipe("");
  EXPECT_THAT(end_tokens(recipe, nullptr), ElementsAre());
  recipe.model.from = folder.path();
  EXPECT_THAT(end_tokens(recipe, nullptr), ElementsAre(7, 9, 3));
  folder.write("config.json", "not JSON");
  EXPECT_THAT(end_tokens(recipe, nullptr), ElementsAre(7, 9));
}

TEST(Prompts, EndTokensAreReadFromFilesAlone) {
  const fixtures::TempFolder folder;
  std::filesystem::create_directory(folder / "generation_config.json");
  auto recipe = generating_recipe("");
  recipe.model.from = folder.path();
  EXPECT_THAT(
      fixtures::message_of<tokenizers::TokenizerError>(
          [&] { end_tokens(recipe, nullptr); }),
      HasSubstr("generation_config.json: is not a regular file"));
  std::filesystem::remove(folder / "generation_config.json");
  folder.write("generation_config.json", R"({"eos_token_id": 7})");
  // Larger than such a file is; takes no room.
  folder.write("config.json", R"({"eos_token_id": 3})");
  std::filesystem::resize_file(folder / "config.json", 1 << 30);
  EXPECT_THAT(
      fixtures::message_of<tokenizers::TokenizerError>(
          [&] { end_tokens(recipe, nullptr); }),
      HasSubstr("config.json: is larger than"));
}

// ---- whose tokenizer --------------------------------------------------------

class TokenizerChoice : public ::testing::Test {
 protected:
  // A recipe whose model came from the folder and has so many tokens.
  config::Recipe recipe_of(int64_t vocab_size, const std::string& data) const {
    auto recipe = train::parse_recipe(
        "model: {dim: 64, layers: 2, heads: 4, ffn_dim: 128, vocab_size: " +
            std::to_string(vocab_size) + "}\ndata: {paths: [none]" + data +
            "}\n",
        "test.yaml");
    recipe.model.from = folder_ / "model";
    return recipe;
  }
  void put_tokenizer() const {
    std::filesystem::create_directory(folder_ / "model");
    std::filesystem::copy(
        WEFT_SOURCE_DIR "/tests/tokenizers/oracle/tokens/unigram.model",
        folder_ / "model/tokenizer.model");
  }
  // As the run of `recipe` writes it down, every key of it.
  static config::Recipe resolved(const config::Recipe& recipe) {
    auto text = recipe;
    text.model.from.clear(); // not to be read again
    auto again = train::parse_recipe(config::to_yaml(text), "recipe.yaml");
    again.model.from = recipe.model.from;
    return again;
  }
  static std::string found(const config::Recipe& recipe) {
    const auto tokenizer = find_tokenizer(recipe, std::nullopt);
    return tokenizer ? tokenizer->describe() : "none";
  }

  fixtures::TempFolder folder_;
};

TEST_F(TokenizerChoice, AreTheModelsFoldersThoughARunWroteBytes) {
  put_tokenizer();
  const auto recipe = recipe_of(4096, ", type: tokens");
  EXPECT_THAT(found(recipe), HasSubstr("tokenizer.model"));
  EXPECT_THAT(config::to_yaml(recipe), HasSubstr("tokenizer: byte"));
  EXPECT_THAT(found(resolved(recipe)), HasSubstr("tokenizer.model"));
  // Nothing was trained yet, nor said.
  EXPECT_THAT(found(recipe_of(4096, "")), HasSubstr("tokenizer.model"));
}

TEST_F(TokenizerChoice, AreBytesWhereItWasTrainedOnText) {
  put_tokenizer();
  const auto recipe = recipe_of(4096, ", type: text");
  EXPECT_EQ(found(recipe), "bytes");
  EXPECT_EQ(found(resolved(recipe)), "bytes");
  EXPECT_EQ(found(recipe_of(4096, ", tokenizer: byte")), "bytes");
}

TEST_F(TokenizerChoice, AreNumbersWithoutATokenizer) {
  const auto recipe = recipe_of(4096, ", type: tokens");
  const auto refusal = [](const config::Recipe& given) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { prompt_tokens(given, {.texts = {"a"}}, nullptr); });
  };
  for (auto each : {recipe, resolved(recipe)}) {
    EXPECT_EQ(found(each), "none");
    EXPECT_THAT(
        refusal(each),
        HasSubstr("model.from (" + (folder_ / "model") + ") is gone"));
    each.model.from.clear();
    EXPECT_EQ(found(each), "none");
    EXPECT_THAT(
        refusal(each),
        HasSubstr("sets no tokenizer for its vocabulary of 4096 tokens"));
  }
  // A vocabulary of nothing but bytes.
  EXPECT_EQ(found(resolved(recipe_of(256, ", type: tokens"))), "bytes");
  std::filesystem::create_directory(folder_ / "model");
  EXPECT_THAT(refusal(recipe), HasSubstr("has none"));
}

} // namespace
} // namespace weft::inference
