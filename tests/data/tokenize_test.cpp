// weft tokenize: what it writes, replaces and refuses.

#include <filesystem>
#include <iterator>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "data/tokenize.h"
#include "data/tokenize_bar.h"
#include "tests/config/fixtures.h"
#include "tests/data/token_fixtures.h"

// A namespace of its own: sources of a test are compiled together.
namespace weft::data::token_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Tokenize, WritesDocumentsWithEnds) {
  const fixtures::TempFolder folder;
  folder.write("text/a.txt", "one|two||three");
  folder.write("text/b.txt", "four");
  const auto tokenizer =
      tokenizers::open_tokenizer(kTokenizers + "bytes.model");
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
  const fixtures::TempFolder folder;
  const auto good = folder.write("good.txt", "good\n");
  const auto bad = folder.write(
      "bad.txt",
      "fine|b\xff"
      "d");
  const auto tokenizer = tokenizers::open_tokenizer(kTokenizers + "gpt2.json");
  TokenizeOptions options = to(folder, {good, bad});
  options.document_separator = "|";
  EXPECT_THAT(
      data_error([&] { tokenize(*tokenizer, options); }),
      HasSubstr("bad.txt\", offset 6: byte 0xff is not valid UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(folder.path()),
          std::filesystem::directory_iterator()),
      2);
  const auto message = [&](const TokenizeOptions& each) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { tokenize(*tokenizer, each); });
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

// Their names and what they hold.
std::map<std::string, std::string> files_in(
    const fixtures::TempFolder& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files[entry.path().filename()] = fixtures::read_text(entry.path());
  }
  return files;
}

TEST(Tokenize, ReplacesItsEarlierOutput) {
  const fixtures::TempFolder folder;
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  TokenizeOptions options = to(folder, {folder.write("a.txt", "first")});
  for (const auto before :
       {TokenFormat::kRaw, TokenFormat::kLlmC, TokenFormat::kMegatron}) {
    for (const auto after :
         {TokenFormat::kRaw, TokenFormat::kLlmC, TokenFormat::kMegatron}) {
      folder.write("a.txt", "first");
      options.format = before;
      tokenize(*tokenizer, options);
      folder.write("a.txt", "the second");
      options.format = after;
      tokenize(*tokenizer, options);
      // An index that stayed would make a Megatron file of the others.
      const auto file = TokenFile::open(options.output);
      EXPECT_EQ(file.format(), after) << to_string(before);
      EXPECT_EQ(all_of(file), tokenizer->encode("the second"));
      EXPECT_EQ(file.origin()->format, after);
      EXPECT_EQ(
          std::filesystem::exists(folder / "out.idx"),
          after == TokenFormat::kMegatron);
    }
  }
}

TEST(Tokenize, LeavesWhatItDidNotWrite) {
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  for (const char* name : {"out.bin", "out.bin.json", "out.idx"}) {
    const fixtures::TempFolder folder;
    TokenizeOptions options = to(folder, {folder.write("a.txt", "a text")});
    folder.write(name, R"({"name": "of another program"})");
    const auto before = files_in(folder);
    for (const auto format :
         {TokenFormat::kRaw, TokenFormat::kLlmC, TokenFormat::kMegatron}) {
      options.format = format;
      EXPECT_THAT(
          fixtures::message_of<mesh::UsageError>(
              [&] { tokenize(*tokenizer, options); }),
          AllOf(
              HasSubstr(folder / name + "\": the file exists"),
              HasSubstr("--force")));
      EXPECT_EQ(files_in(folder), before);
    }
    options.format = TokenFormat::kRaw;
    options.force = true;
    tokenize(*tokenizer, options);
    EXPECT_EQ(
        all_of(TokenFile::open(options.output)), tokenizer->encode("a text"))
        << name;
    options.force = false; // now it is an earlier output
    tokenize(*tokenizer, options);
    EXPECT_EQ(files_in(folder).size(), 3U);
  }
}

// docs.raw and docs.bin have one name for their index.
TEST(Tokenize, LeavesTheIndexOfOtherTokens) {
  const fixtures::TempFolder folder;
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  TokenizeOptions options = to(folder, {folder.write("a.txt", "a text")});
  options.output = folder / "docs.raw";
  tokenize(*tokenizer, options);
  options.output = folder / "docs.bin";
  options.format = TokenFormat::kMegatron;
  tokenize(*tokenizer, options);
  const auto before = files_in(folder);
  options.output = folder / "docs.raw";
  options.format = TokenFormat::kRaw;
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { tokenize(*tokenizer, options); }),
      HasSubstr("docs.idx\": the file exists"));
  EXPECT_EQ(files_in(folder), before);
}

TEST(Tokenize, RefusesNamesOfCompanionsAndWhatIsNoFile) {
  const fixtures::TempFolder folder;
  const auto tokenizer = tokenizers::open_tokenizer("byte");
  TokenizeOptions options = to(folder, {folder.write("a.txt", "a text")});
  const auto message = [&](const std::string& output) {
    options.output = output;
    return fixtures::message_of<mesh::UsageError>(
        [&] { tokenize(*tokenizer, options); });
  };
  for (const bool force : {false, true}) {
    options.force = force;
    for (const char* name : {"x.idx", "x.json", "x.bin.json"}) {
      EXPECT_THAT(message(folder / name), HasSubstr("Use another name"));
      EXPECT_FALSE(std::filesystem::exists(folder / name));
    }
    std::filesystem::create_directories(folder / "y.bin.json");
    EXPECT_THAT(message(folder / "y.bin"), HasSubstr("json\": is a folder"));
    std::filesystem::remove(folder / "z.bin");
    std::filesystem::create_symlink("/dev/null", folder / "z.bin");
    EXPECT_THAT(message(folder / "z.bin"), HasSubstr("is not a regular file"));
  }
}

TEST(Tokenize, TakesTheTypeThatFits) {
  const fixtures::TempFolder folder;
  auto file =
      nlohmann::json::parse(fixtures::read_text(kTokenizers + "gpt2.json"));
  file["model"]["vocab"]["far"] = 70'000;
  file["added_tokens"] = nlohmann::json::array();
  const auto tokenizer =
      tokenizers::open_tokenizer(folder.write("t/tokenizer.json", file.dump()));
  TokenizeOptions options = to(folder, {folder.write("a.txt", "a text")});
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { tokenize(*tokenizer, options); }),
      HasSubstr("use --dtype uint32"));
  options.type = TokenType::kUint16;
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>(
          [&] { tokenize(*tokenizer, options); }),
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

} // namespace
} // namespace weft::data::token_test
