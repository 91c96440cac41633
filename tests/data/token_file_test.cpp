// Files of tokens: read, refused; and samples of them.

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/batch_loader.h"
#include "data/token_source.h"
#include "data/tokenize.h"
#include "tests/config/fixtures.h"
#include "tests/data/token_fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

// A namespace of its own: sources of a test are compiled together.
namespace weft::data::token_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string llm_c(int32_t magic, int32_t version, int32_t size) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = size;
  return packed(header);
}

struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths = {3, 0, 2};
  std::vector<int64_t> begins = {0, 6, 6};
  std::vector<int64_t> documents = {0, 1, 3};

  std::string bytes() const {
    const std::vector<uint64_t> counts = {lengths.size(), documents.size()};
    return magic + packed(std::vector{version}) + packed(std::vector{type}) +
           packed(counts) + packed(lengths) + packed(begins) +
           packed(documents);
  }
};

TEST(TokenFile, ReadsRawIntegers) {
  const fixtures::TempFolder folder;
  const auto path =
      folder.write("a.bin", packed<uint16_t>({1, 2, 65535, 0, 77}));
  const auto file = TokenFile::open(path);
  EXPECT_EQ(file.format(), TokenFormat::kRaw);
  EXPECT_EQ(all_of(file), (Ids{1, 2, 65535, 0, 77}));
  Ids part(2);
  file.read(2, part);
  EXPECT_EQ(part, (Ids{65535, 0}));
  EXPECT_EQ(file.offset_bytes(3), 6);
  EXPECT_THROW(file.read(4, part), c10::ValueError);
  EXPECT_THROW(file.read(-1, part), c10::ValueError);
  const auto wide = TokenFile::open(
      folder.write("b.bin", packed<uint32_t>({7, 4000000000U})),
      TokenFormat::kRaw,
      TokenType::kUint32);
  EXPECT_EQ(all_of(wide), (Ids{7, 4000000000}));
}

TEST(TokenFile, ReadsLlmC) {
  const fixtures::TempFolder folder;
  const auto gpt2 = TokenFile::open(folder.write(
      "a.bin", llm_c(20240520, 1, 3) + packed<uint16_t>({5, 6, 50256})));
  EXPECT_EQ(gpt2.format(), TokenFormat::kLlmC);
  EXPECT_EQ(all_of(gpt2), (Ids{5, 6, 50256}));
  EXPECT_EQ(gpt2.offset_bytes(1), 1026);
  const auto llama3 = TokenFile::open(folder.write(
      "b.bin", llm_c(20240801, 7, 2) + packed<uint32_t>({128000, 1})));
  EXPECT_EQ(all_of(llama3), (Ids{128000, 1}));
}

TEST(TokenFile, ReadsMegatron) {
  const fixtures::TempFolder folder;
  const auto path = folder.write("a.bin", packed<uint16_t>({9, 8, 7, 6, 5}));
  folder.write("a.idx", Index().bytes());
  const auto file = TokenFile::open(path);
  EXPECT_EQ(file.format(), TokenFormat::kMegatron);
  EXPECT_EQ(all_of(file), (Ids{9, 8, 7, 6, 5}));
  folder.write("b.bin", packed<int32_t>({100000, 2, 3}));
  folder.write(
      "b.idx",
      Index{.type = 4, .lengths = {3}, .begins = {0}, .documents = {0, 1}}
          .bytes());
  EXPECT_EQ(all_of(TokenFile::open(folder / "b.bin")), (Ids{100000, 2, 3}));
}

TEST(TokenFile, RefusesDamagedFiles) {
  const fixtures::TempFolder folder;
  const auto tokens = packed<uint16_t>({1, 2, 3});
  EXPECT_THAT(
      open_error(folder.write("odd.bin", tokens + "x")),
      AllOf(
          HasSubstr("odd.bin\", offset 6"),
          HasSubstr("the file has 7 bytes, which is not")));
  EXPECT_THAT(open_error(folder / "none.bin"), HasSubstr("No such file"));
  EXPECT_THAT(open_error(folder.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(
      open_error(folder.write("short.bin", "x"), TokenFormat::kLlmC),
      HasSubstr("offset 1: the file ends within llm.c's header"));
  EXPECT_THAT(
      open_error(
          folder.write("magic.bin", llm_c(1, 1, 3) + tokens),
          TokenFormat::kLlmC),
      HasSubstr("offset 0: got magic number 1, expected"));
  EXPECT_THAT(
      open_error(folder.write("v.bin", llm_c(20240520, 2, 3) + tokens)),
      HasSubstr("offset 4: version 2, expected 1"));
  EXPECT_THAT(
      open_error(folder.write("cut.bin", llm_c(20240520, 1, 4) + tokens)),
      HasSubstr("offset 1030: 4 tokens of type uint16 need 1032 bytes, but the "
                "file has 1030"));
  EXPECT_THAT(
      open_error(folder.write("more.bin", llm_c(20240520, 1, 2) + tokens)),
      HasSubstr("offset 1028: 2 tokens"));
  EXPECT_THAT(
      open_error(folder.write("less.bin", llm_c(20240520, 1, -2) + tokens)),
      HasSubstr("offset 8: -2 tokens"));
}

TEST(TokenFile, RefusesDamagedIndexes) {
  const fixtures::TempFolder folder;
  const auto path = folder.write("a.bin", packed<uint16_t>({9, 8, 7, 6, 5}));
  const auto message = [&](const std::string& index) {
    folder.write("a.idx", index);
    return open_error(path);
  };
  const std::string whole = Index().bytes();
  EXPECT_EQ(message(whole), "");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(message(whole.substr(0, length)), HasSubstr("a.idx\", offset"))
        << length;
  }
  EXPECT_THAT(message(whole + "x"), HasSubstr("do not match the file size"));
  EXPECT_THAT(
      message(Index{.magic = "MMIDIDY\0\0"}.bytes()), HasSubstr("a.idx"));
  EXPECT_THAT(
      message(Index{.version = 2}.bytes()),
      HasSubstr("offset 9: version 2, expected 1"));
  EXPECT_THAT(
      message(Index{.type = 6}.bytes()), HasSubstr("offset 17: type 6"));
  EXPECT_THAT(
      message(Index{.lengths = {3, -1, 3}}.bytes()),
      HasSubstr("offset 38: a length of -1"));
  EXPECT_THAT(
      message(Index{.begins = {0, 6, 8}}.bytes()),
      HasSubstr("sequence 2 begins at byte 8, but the previous sequences end "
                "at byte 6"));
  EXPECT_THAT(
      message(Index{.documents = {0, 3, 1}}.bytes()),
      HasSubstr("document end"));
  EXPECT_THAT(
      message(Index{.documents = {0, 1, 2}}.bytes()),
      HasSubstr(
          "the last document ends at sequence 2, but there are 3 sequences"));
  // Of another .bin.
  EXPECT_THAT(
      message(Index{.lengths = {3, 0, 3}}.bytes()),
      AllOf(
          HasSubstr("a.bin\", offset 10"),
          HasSubstr("6 tokens of type uint16")));
}

TEST(TokenFile, NamesATokenThatIsTooLarge) {
  const fixtures::TempFolder folder;
  std::vector<uint16_t> tokens(200'000, 41);
  tokens[150'001] = 300;
  const auto file = TokenFile::open(folder.write("a.bin", packed(tokens)));
  file.check_below(301);
  EXPECT_THAT(
      data_error([&] { file.check_below(300); }),
      AllOf(
          HasSubstr("a.bin\", offset 300002"),
          HasSubstr("token 300 at index 150001 of the file is outside the "
                    "vocabulary of 300")));
  folder.write("b.bin", packed<int32_t>({1, -5, 3}));
  folder.write(
      "b.idx",
      Index{.type = 4, .lengths = {3}, .begins = {0}, .documents = {0, 1}}
          .bytes());
  const auto below = TokenFile::open(folder / "b.bin");
  EXPECT_THAT(
      data_error([&] { below.check_below(10); }),
      HasSubstr("offset 4: token -5"));
}

TEST(TokenFile, NoticesFilesThatChange) {
  const fixtures::TempFolder folder;
  const auto path = folder.write("a.bin", packed<uint16_t>({1, 2, 3}));
  const auto file = TokenFile::open(path);
  folder.write("a.bin", packed<uint16_t>({1}));
  Ids tokens(1);
  EXPECT_THAT(
      data_error([&] { file.read(2, tokens); }),
      HasSubstr("a.bin\", offset 4: the file changed after it was opened: it "
                "had 6 bytes then and has 2 now"));
  std::filesystem::remove(path);
  EXPECT_THAT(
      data_error([&] { file.read(2, tokens); }), HasSubstr("No such file"));
}

// ---- training on them -------------------------------------------------------

config::Recipe recipe_of(const std::string& keys) {
  config::Recipe recipe = train::parse_recipe(
      "name: t\nmodel: {type: llama, dim: 16, layers: 1, heads: 2, ffn_dim: "
      "32, vocab_size: 256}\ntrain: {global_batch_size: 4}\n" +
          keys,
      "t.yaml");
  train::validate(recipe, 1);
  return recipe;
}

std::string open_refusal(const config::Recipe& recipe) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { BatchLoader::open(recipe, 0); });
}

// The same bytes as text and as tokens make the same batches.
TEST(TokenData, SamplesAreThoseOfText) {
  const fixtures::TempFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += static_cast<char>(i * i % 251);
  }
  folder.write("text/a.txt", text.substr(0, 1100));
  folder.write("text/b.txt", text.substr(1100));
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  TokenizeOptions options = to(folder, {folder / "text/a.txt"});
  std::filesystem::create_directory(folder / "tokens");
  options.output = folder / "tokens/a.bin";
  tokenize(*tokenizer, options);
  options.inputs = {folder / "text/b.txt"};
  options.output = folder / "tokens/b.bin";
  options.format = TokenFormat::kMegatron; // also of two kinds
  tokenize(*tokenizer, options);
  auto as_text = BatchLoader::open(
      recipe_of(
          "data: {sequence_length: 32, paths: [" + folder / "text" + "]}"),
      0);
  auto as_tokens = BatchLoader::open(
      recipe_of(
          "data: {type: tokens, sequence_length: 32, paths: [" +
          folder / "tokens" + "]}"),
      0);
  EXPECT_EQ(
      as_tokens.data().num_train_samples(), as_text.data().num_train_samples());
  EXPECT_EQ(as_tokens.data().describe(), "0.0 M tokens in 2 files");
  for (int64_t first = 0; first < 200; first += 4) {
    EXPECT_TRUE(at::equal(
        as_tokens.train(first, 0).input, as_text.train(first, 0).input));
    EXPECT_TRUE(at::equal(
        as_tokens.train(first, 0).target, as_text.train(first, 0).target));
  }
  EXPECT_TRUE(
      at::equal(as_tokens.heldout(0, 0).input, as_text.heldout(0, 0).input));
}

TEST(TokenData, RefusedBeforeTraining) {
  const fixtures::TempFolder folder;
  std::vector<uint16_t> tokens(1000, 7);
  tokens[900] = 256;
  const auto path = folder.write("a.bin", packed(tokens));
  const std::string data =
      "data: {type: tokens, sequence_length: 32, paths: [" + path + "]";
  EXPECT_THAT(
      open_refusal(recipe_of(data + "}")),
      AllOf(HasSubstr("a.bin\", offset 1800"), HasSubstr("token 256 ")));
  EXPECT_THAT(
      open_refusal(recipe_of(data + ", dtype: uint32}")),
      HasSubstr("offset 0: token 458759 "));
  EXPECT_THAT(
      open_refusal(recipe_of(data + ", format: llm.c}")),
      HasSubstr("got magic number 458759"));
  EXPECT_THAT(
      open_refusal(recipe_of(data + ", format: megatron}")),
      HasSubstr("a.idx\", offset 0: No such file"));
  folder.write("a.bin", packed(std::vector<uint16_t>(40, 7)));
  EXPECT_THAT(
      open_refusal(recipe_of(data + "}")),
      HasSubstr("too long for data of 40 tokens"));
}

TEST(TokenData, RefusesTokenizersThatDoNotFit) {
  const fixtures::TempFolder folder;
  const auto text = folder.write("a.txt", std::string(4000, 'x') + "the end");
  const auto tokenizer = tokenizers::open_tokenizer(kTokenizers + "gpt2.json");
  const TokenizeOptions options = to(folder, {text});
  tokenize(*tokenizer, options);
  const std::string tokens =
      "data: {type: tokens, sequence_length: 8, paths: [" + options.output +
      "]";
  EXPECT_THAT(
      open_refusal(recipe_of(tokens + "}")),
      AllOf(
          HasSubstr("gpt2.json), whose vocabulary has 504 tokens"),
          HasSubstr("model.vocab_size is 256")));
  const auto with_vocabulary = [&](const std::string& keys, int64_t size) {
    config::Recipe recipe = recipe_of(keys);
    recipe.model.vocab_size = size;
    return open_refusal(recipe);
  };
  EXPECT_EQ(with_vocabulary(tokens + "}", 504), "");
  EXPECT_EQ(
      with_vocabulary(
          tokens + ", tokenizer: " + kTokenizers + "gpt2.json}", 504),
      "");
  EXPECT_THAT(
      with_vocabulary(
          tokens + ", tokenizer: " + kTokenizers + "llama3.json}", 600),
      AllOf(
          HasSubstr("data.tokenizer: \""),
          HasSubstr("was written with tokenizer")));
  EXPECT_THAT(
      with_vocabulary(
          tokens + ", tokenizer: " + kTokenizers + "llama3.json}", 504),
      AllOf(
          HasSubstr("byte-level BPE of 600 tokens"),
          HasSubstr("has more tokens than model.vocab_size=504")));
  EXPECT_THAT(
      open_refusal(recipe_of(
          "data: {sequence_length: 8, tokenizer: t.json, paths: [" + text +
          "]}")),
      HasSubstr("`weft tokenize t.json " + text + " -o t.bin`"));
}

// A file that is not what its companion says is looked at token by token.
TEST(TokenData, TrustsOnlyWhatIsAsItWasWritten) {
  const fixtures::TempFolder folder;
  const auto text = folder.write("a.txt", std::string(4000, 'x'));
  const TokenizeOptions options = to(folder, {text});
  tokenize(*tokenizers::open_tokenizer(kTokenizers + "gpt2.json"), options);
  TokenFile::open(options.output).check_below(504);
  std::string content = fixtures::read_text(options.output);
  content[2001] = '\xff';
  folder.write("out.bin", content);
  EXPECT_THAT(
      data_error([&] { TokenFile::open(options.output).check_below(504); }),
      HasSubstr("offset 2000: token 65"));
  folder.write("out.bin", content + "xx");
  EXPECT_THAT(
      open_error(options.output),
      AllOf(
          HasSubstr("tokens of type uint16, but"), HasSubstr("out.bin.json")));
  folder.write("out.bin.json", "{}");
  EXPECT_THAT(
      open_error(options.output),
      HasSubstr("does not have the format that weft tokenize writes"));
  std::filesystem::remove(folder / "out.bin.json");
  std::filesystem::create_directory(folder / "out.bin.json");
  EXPECT_THAT(
      open_error(options.output),
      HasSubstr("out.bin.json\", offset 0: not a regular file"));
}

} // namespace
} // namespace weft::data::token_test
