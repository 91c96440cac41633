// Files of tokens: written, read, refused; and samples of them.

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "recipes/config/validate.h"
#include "recipes/data/batch_loader.h"
#include "recipes/data/data_error.h"
#include "recipes/data/token_file.h"
#include "recipes/data/token_source.h"
#include "recipes/tokens/tokenize.h"
#include "recipes/tokens/tokenize_bar.h"
#include "tests/recipes/fixtures.h"

// A namespace of its own: sources of a test are compiled together.
namespace weft::recipes::token_file_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

template <class T>
std::string packed(const std::vector<T>& values) {
  return {
      reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

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

Ids all_of(const TokenFile& file) {
  Ids tokens(static_cast<size_t>(file.size()));
  file.read(0, tokens);
  return tokens;
}

template <class Body>
std::string data_error(Body&& body) {
  return message_of<DataError>(std::forward<Body>(body));
}

std::string open_error(
    const std::string& path,
    TokenFormat format = TokenFormat::kAuto) {
  return data_error([&] { TokenFile::open(path, format); });
}

TEST(TokenFile, ReadsRawIntegers) {
  const TempFolder folder;
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
  const TempFolder folder;
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
  const TempFolder folder;
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
  const TempFolder folder;
  const auto tokens = packed<uint16_t>({1, 2, 3});
  EXPECT_THAT(
      open_error(folder.write("odd.bin", tokens + "x")),
      AllOf(HasSubstr("odd.bin\", offset 6"), HasSubstr("7 bytes are no")));
  EXPECT_THAT(open_error(folder / "none.bin"), HasSubstr("No such file"));
  EXPECT_THAT(open_error(folder.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(
      open_error(folder.write("short.bin", "x"), TokenFormat::kLlmC),
      HasSubstr("offset 1: ends inside of llm.c's header"));
  EXPECT_THAT(
      open_error(
          folder.write("magic.bin", llm_c(1, 1, 3) + tokens),
          TokenFormat::kLlmC),
      HasSubstr("offset 0: magic number 1 is not"));
  EXPECT_THAT(
      open_error(folder.write("v.bin", llm_c(20240520, 2, 3) + tokens)),
      HasSubstr("offset 4: version 2, expected 1"));
  EXPECT_THAT(
      open_error(folder.write("cut.bin", llm_c(20240520, 1, 4) + tokens)),
      HasSubstr("offset 1030: 4 tokens of uint16 need 1032 bytes, but the "
                "file has 1030"));
  EXPECT_THAT(
      open_error(folder.write("more.bin", llm_c(20240520, 1, 2) + tokens)),
      HasSubstr("offset 1028: 2 tokens"));
  EXPECT_THAT(
      open_error(folder.write("less.bin", llm_c(20240520, 1, -2) + tokens)),
      HasSubstr("offset 8: -2 tokens"));
}

TEST(TokenFile, RefusesDamagedIndexes) {
  const TempFolder folder;
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
  EXPECT_THAT(message(whole + "x"), HasSubstr("do not make"));
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
      HasSubstr("sequence 2 begins at byte 8, but the ones before it end at "
                "6"));
  EXPECT_THAT(
      message(Index{.documents = {0, 3, 1}}.bytes()),
      HasSubstr("document end"));
  EXPECT_THAT(
      message(Index{.documents = {0, 1, 2}}.bytes()),
      HasSubstr("documents end at sequence 2 of 3"));
  // Of another .bin.
  EXPECT_THAT(
      message(Index{.lengths = {3, 0, 3}}.bytes()),
      AllOf(HasSubstr("a.bin\", offset 10"), HasSubstr("6 tokens of uint16")));
}

TEST(TokenFile, NamesATokenThatIsTooLarge) {
  const TempFolder folder;
  std::vector<uint16_t> tokens(200'000, 41);
  tokens[150'001] = 300;
  const auto file = TokenFile::open(folder.write("a.bin", packed(tokens)));
  file.check_below(301);
  EXPECT_THAT(
      data_error([&] { file.check_below(300); }),
      AllOf(
          HasSubstr("a.bin\", offset 300002"),
          HasSubstr("token 300 (number 150001 of the file) is outside of the "
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
  const TempFolder folder;
  const auto path = folder.write("a.bin", packed<uint16_t>({1, 2, 3}));
  const auto file = TokenFile::open(path);
  folder.write("a.bin", packed<uint16_t>({1}));
  Ids tokens(1);
  EXPECT_THAT(
      data_error([&] { file.read(2, tokens); }),
      HasSubstr("a.bin\", offset 4: changed since it was opened: 6 bytes then, "
                "2 now"));
  std::filesystem::remove(path);
  EXPECT_THAT(
      data_error([&] { file.read(2, tokens); }), HasSubstr("No such file"));
}

// ---- weft tokenize ----------------------------------------------------------

const std::string kTokenizers = WEFT_SOURCE_DIR "/tests/recipes/oracle/tokens/";

TokenizeOptions to(const TempFolder& folder, std::vector<std::string> inputs) {
  return {.inputs = std::move(inputs), .output = folder / "out.bin"};
}

TEST(Tokenize, WritesDocumentsWithEnds) {
  const TempFolder folder;
  folder.write("text/a.txt", "one|two||three");
  folder.write("text/b.txt", "four");
  const auto tokenizer = open_tokenizer(kTokenizers + "bytes.model");
  TokenizeOptions options = to(folder, {folder / "text"});
  options.bos = true;
  options.eos = true;
  options.document_separator = "|";
  Ids expected;
  for (const char* document : {"one", "two", "three", "four"}) {
    const Ids ids = tokenizer->encode(document);
    expected.push_back(1);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(2);
  }
  for (const auto format :
       {TokenFormat::kRaw, TokenFormat::kLlmC, TokenFormat::kMegatron}) {
    options.format = format;
    const auto done = tokenize(*tokenizer, options);
    EXPECT_EQ(done.documents, 4);
    EXPECT_EQ(done.tokens, static_cast<int64_t>(expected.size()));
    EXPECT_EQ(done.bytes_done, done.bytes_total);
    const auto file = TokenFile::open(options.output);
    EXPECT_EQ(file.format(), format);
    EXPECT_EQ(all_of(file), expected);
    EXPECT_EQ(file.origin()->fingerprint, tokenizer->fingerprint_text());
    EXPECT_EQ(file.origin()->vocab_size, 600);
  }
  // Nothing is left over.
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.is_regular_file() ? 1 : 0;
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
  EXPECT_EQ(files, 3U);
}

TEST(Tokenize, RefusesAndLeavesNothing) {
  const TempFolder folder;
  const auto good = folder.write("good.txt", "good\n");
  const auto bad = folder.write(
      "bad.txt",
      "fine|b\xff"
      "d");
  const auto tokenizer = open_tokenizer(kTokenizers + "gpt2.json");
  TokenizeOptions options = to(folder, {good, bad});
  options.document_separator = "|";
  EXPECT_THAT(
      data_error([&] { tokenize(*tokenizer, options); }),
      HasSubstr("bad.txt\", offset 6: not UTF-8: 0xff"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(folder.path()),
          std::filesystem::directory_iterator()),
      2);
  const auto message = [&](const TokenizeOptions& each) {
    return message_of<mesh::UsageError>([&] { tokenize(*tokenizer, each); });
  };
  options = to(folder, {good});
  options.bos = true;
  EXPECT_THAT(message(options), HasSubstr("--bos: byte-level BPE"));
  options = to(folder, {good});
  options.output = good;
  EXPECT_THAT(message(options), HasSubstr("would be overwritten"));
  options.output = folder / "none/out.bin";
  EXPECT_THAT(message(options), HasSubstr("No such file or directory"));
  options.output = folder.path();
  EXPECT_THAT(message(options), HasSubstr("is a folder"));
  options = to(folder, {folder.write("empty.txt", "")});
  EXPECT_THAT(message(options), HasSubstr("all files are empty"));
  options = to(folder, {good});
  options.document_separator = "good\n";
  EXPECT_THAT(message(options), HasSubstr("all documents are empty"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

TEST(Tokenize, TakesTheTypeThatFits) {
  const TempFolder folder;
  auto file = nlohmann::json::parse(read_text(kTokenizers + "gpt2.json"));
  file["model"]["vocab"]["far"] = 70'000;
  file["added_tokens"] = nlohmann::json::array();
  const auto tokenizer =
      open_tokenizer(folder.write("t/tokenizer.json", file.dump()));
  TokenizeOptions options = to(folder, {folder.write("a.txt", "a text")});
  EXPECT_THAT(
      message_of<mesh::UsageError>([&] { tokenize(*tokenizer, options); }),
      HasSubstr("give --dtype uint32"));
  options.type = TokenType::kUint16;
  EXPECT_THAT(
      message_of<mesh::UsageError>([&] { tokenize(*tokenizer, options); }),
      HasSubstr("--dtype uint16: "));
  options.type = TokenType::kUint32;
  tokenize(*tokenizer, options);
  EXPECT_EQ(TokenFile::open(options.output).type(), TokenType::kUint32);
  EXPECT_EQ(
      all_of(TokenFile::open(options.output)), tokenizer->encode("a text"));
  options.type.reset();
  options.format = TokenFormat::kMegatron;
  tokenize(*tokenizer, options);
  EXPECT_EQ(TokenFile::open(options.output).type(), TokenType::kInt32);
}

TEST(Tokenize, LineTellsHowFar) {
  const TokenizeProgress progress{
      .bytes_done = 12'340'000, .bytes_total = 84'200'000, .tokens = 3'100'000};
  EXPECT_EQ(tokenize_line(progress, 2), "12.3/84.2 MB  3.1 M tokens  6.2 MB/s");
}

// ---- training on them -------------------------------------------------------

Recipe recipe_of(const std::string& keys) {
  Recipe recipe = parse_recipe(
      "name: t\nmodel: {type: llama, dim: 16, layers: 1, heads: 2, ffn_dim: "
      "32, vocab_size: 256}\ntrain: {global_batch_size: 4}\n" +
          keys,
      "t.yaml");
  validate(recipe, 1);
  return recipe;
}

std::string open_refusal(const Recipe& recipe) {
  return message_of<mesh::UsageError>([&] { BatchLoader::open(recipe, 0); });
}

// The same bytes as text and as tokens make the same batches.
TEST(TokenData, SamplesAreThoseOfText) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += static_cast<char>(i * i % 251);
  }
  folder.write("text/a.txt", text.substr(0, 1100));
  folder.write("text/b.txt", text.substr(1100));
  const auto tokenizer = open_tokenizer("byte");
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
  const TempFolder folder;
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
      HasSubstr("magic number 458759"));
  EXPECT_THAT(
      open_refusal(recipe_of(data + ", format: megatron}")),
      HasSubstr("a.idx\", offset 0: No such file"));
  folder.write("a.bin", packed(std::vector<uint16_t>(40, 7)));
  EXPECT_THAT(
      open_refusal(recipe_of(data + "}")),
      HasSubstr("too long for data of 40 tokens"));
}

TEST(TokenData, RefusesTokenizersThatDoNotFit) {
  const TempFolder folder;
  const auto text = folder.write("a.txt", std::string(4000, 'x') + "the end");
  const auto tokenizer = open_tokenizer(kTokenizers + "gpt2.json");
  const TokenizeOptions options = to(folder, {text});
  tokenize(*tokenizer, options);
  const std::string tokens =
      "data: {type: tokens, sequence_length: 8, paths: [" + options.output +
      "]";
  EXPECT_THAT(
      open_refusal(recipe_of(tokens + "}")),
      AllOf(
          HasSubstr("gpt2.json), of which the vocabulary is 504"),
          HasSubstr("model.vocab_size, is 256")));
  const auto with_vocabulary = [&](const std::string& keys, int64_t size) {
    Recipe recipe = recipe_of(keys);
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
          HasSubstr("was written by another tokenizer")));
  EXPECT_THAT(
      with_vocabulary(
          tokens + ", tokenizer: " + kTokenizers + "llama3.json}", 504),
      AllOf(
          HasSubstr("byte-level BPE of 600 tokens"),
          HasSubstr("does not fit model.vocab_size=504")));
  EXPECT_THAT(
      open_refusal(recipe_of(
          "data: {sequence_length: 8, tokenizer: t.json, paths: [" + text +
          "]}")),
      HasSubstr("`weft tokenize t.json " + text + " -o t.bin`"));
}

// A file that is not what its companion says is looked at token by token.
TEST(TokenData, TrustsOnlyWhatIsAsItWasWritten) {
  const TempFolder folder;
  const auto text = folder.write("a.txt", std::string(4000, 'x'));
  const TokenizeOptions options = to(folder, {text});
  tokenize(*open_tokenizer(kTokenizers + "gpt2.json"), options);
  TokenFile::open(options.output).check_below(504);
  std::string content = read_text(options.output);
  content[2001] = '\xff';
  folder.write("out.bin", content);
  EXPECT_THAT(
      data_error([&] { TokenFile::open(options.output).check_below(504); }),
      HasSubstr("offset 2000: token 65"));
  folder.write("out.bin", content + "xx");
  EXPECT_THAT(
      open_error(options.output),
      AllOf(HasSubstr("tokens of uint16, but"), HasSubstr("out.bin.json")));
  folder.write("out.bin.json", "{}");
  EXPECT_THAT(
      open_error(options.output), HasSubstr("not what weft tokenize writes"));
}

} // namespace
} // namespace weft::recipes::token_file_test
