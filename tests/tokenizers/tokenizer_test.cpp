// Tokenizers: against what their own libraries stored (oracle/tokens.py), and
// with files that are not what they should be.

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/config/fixtures.h"
#include "tokenizers/pattern.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/tokenizer_json.h"
#include "tokenizers/utf8.h"

// A namespace of its own: sources of a test are compiled together.
namespace weft::tokenizers::tokenizer_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

const std::string kOracle = WEFT_SOURCE_DIR "/tests/tokenizers/oracle/";

std::vector<json> read_cases() {
  return json::parse(fixtures::read_text(kOracle + "tokens.json"))["cases"];
}

json tokenizer_file(const std::string& name) {
  return json::parse(fixtures::read_text(kOracle + "tokens/" + name));
}

std::unique_ptr<Tokenizer> from_json(const json& file) {
  return parse_tokenizer_json(file.dump(), "t.json");
}

std::unique_ptr<Tokenizer> tokenizer_of(const json& each) {
  const std::string name = each["file"];
  if (!each.contains("pre_tokenizer")) {
    return open_tokenizer(kOracle + "tokens/" + name);
  }
  json file = tokenizer_file(name);
  file["pre_tokenizer"] = each["pre_tokenizer"];
  return from_json(file);
}

std::string refusal_of(const json& file) {
  return fixtures::message_of<TokenizerError>([&] { from_json(file); });
}

TEST(Tokenizer, IdsAndTextAreTheLibraries) {
  int texts = 0;
  for (const json& each : read_cases()) {
    const auto tokenizer = tokenizer_of(each);
    const std::string words = each.value("pre_tokenizer", json()).dump();
    for (const json& result : each["results"]) {
      SCOPED_TRACE(each["file"].dump() + " " + words + result["text"].dump());
      const std::string text = result["text"];
      const Ids ids = tokenizer->encode(text);
      EXPECT_EQ(ids, result["ids"].get<Ids>());
      EXPECT_EQ(tokenizer->decode(ids), result["decoded"].get<std::string>());
      ++texts;
    }
  }
  EXPECT_GT(texts, 1000);
}

// Again, with words that are known by now.
TEST(Tokenizer, RememberedWordsHaveTheSameIds) {
  for (const json& each : read_cases()) {
    const auto tokenizer = tokenizer_of(each);
    for (int round = 0; round < 2; ++round) {
      for (const json& result : each["results"]) {
        const std::string text = result["text"];
        EXPECT_EQ(tokenizer->encode(text), result["ids"].get<Ids>()) << text;
      }
    }
  }
}

TEST(Tokenizer, PartsOfALongTextAreTheWhole) {
  for (const char* name : {"gpt2.json", "llama3.json", "llama2.json"}) {
    const auto tokenizer = open_tokenizer(kOracle + "tokens/" + name);
    std::string text;
    for (int i = 0; i < 20'000; ++i) {
      text += "word " + std::to_string(i * i) + (i % 7 == 0 ? "\n" : "  ");
    }
    Ids parts;
    size_t calls = 0;
    size_t last = 0;
    tokenizer->encode_to(
        text, [&](std::span<const int64_t> part, size_t bytes) {
          parts.insert(parts.end(), part.begin(), part.end());
          EXPECT_GE(bytes, last);
          last = bytes;
          ++calls;
        });
    EXPECT_GT(calls, 3U) << name;
    EXPECT_EQ(last, text.size()) << name;
    EXPECT_EQ(parts, tokenizer->encode(text)) << name;
    EXPECT_EQ(tokenizer->decode(parts), text) << name;
  }
}

// One word of 300 kB: what is merged first must not depend on how it is found.
TEST(Tokenizer, AWordWithoutEndIsMerged) {
  const auto tokenizer = open_tokenizer(kOracle + "tokens/gpt2.json");
  const std::string text(300'000, 'e');
  const Ids ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(ids, tokenizer->encode(text));
}

TEST(Tokenizer, BytesAreTokens) {
  const auto tokenizer = open_tokenizer("byte");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->encode(std::string("a\0\xff", 3)), (Ids{97, 0, 255}));
  EXPECT_EQ(tokenizer->decode(Ids{97, 0, 255}), std::string("a\0\xff", 3));
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(
      fixtures::message_of<TokenizerError>([&] {
        tokenizer->decode(Ids{1, 256});
      }),
      "token 256 is out of range for a vocabulary of 256 tokens");
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  const std::map<std::string, size_t> texts = {
      {"ab\xff", 2},
      {"12345678\xc3", 8},
      {"\xc0\x80", 0},
      {"a\xed\xa0\x80", 1},    // a surrogate
      {"\xf4\x90\x80\x80", 0}, // beyond U+10FFFF
      {"\xe2\x82", 0},
      {"\xe2\x82\xac\x80", 3}};
  for (const char* name : {"gpt2.json", "llama2.json", "bytes.model"}) {
    const auto tokenizer = open_tokenizer(kOracle + "tokens/" + name);
    for (const auto& [text, offset] : texts) {
      try {
        tokenizer->encode(text);
        ADD_FAILURE() << name << " took " << text;
      } catch (const InvalidText& error) {
        EXPECT_EQ(error.offset(), offset) << text;
        EXPECT_THAT(error.what(), HasSubstr("not UTF-8 at byte"));
      }
    }
  }
}

TEST(Tokenizer, HalfACharacterKeepsItsBytes) {
  for (const char* name : {"gpt2.json", "llama2.json", "bytes.model"}) {
    const auto tokenizer = open_tokenizer(kOracle + "tokens/" + name);
    const std::string text = "a\xe1\x9a\xa0"; // a rune, of three tokens
    const Ids ids = tokenizer->encode(text);
    ASSERT_GE(ids.size(), 4U) << name;
    const auto first = std::span(ids).first(ids.size() - 1);
    EXPECT_EQ(tokenizer->decode(first), "a\xe1\x9a") << name;
    EXPECT_EQ(tokenizer->decode(ids), text) << name;
  }
}

TEST(Tokenizer, BytesBetweenPiecesKeepTheirSpaces) {
  const auto tokenizer = open_tokenizer(kOracle + "tokens/bytes.model");
  const std::string text = "\xe1\x9a\xa0 the \xe1\x9a\xa0\xe1\x9a\xa0 model";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(Tokenizer, SpecialTokensOfAFolder) {
  const fixtures::TempFolder folder;
  folder.write(
      "tokenizer.json", fixtures::read_text(kOracle + "tokens/llama3.json"));
  EXPECT_EQ(open_tokenizer(folder.path())->bos(), 0); // by its template
  EXPECT_FALSE(open_tokenizer(folder.path())->eos());
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<|begin_of_text|>"},
          "eos_token": "<|end_of_text|>"})");
  EXPECT_EQ(open_tokenizer(folder.path())->bos(), 0);
  EXPECT_EQ(open_tokenizer(folder.path())->eos(), 1);
  folder.write("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  EXPECT_THAT(
      fixtures::message_of<TokenizerError>(
          [&] { open_tokenizer(folder.path()); }),
      HasSubstr("\"<nowhere>\""));
  const auto pieces = open_tokenizer(kOracle + "tokens/bytes.model");
  EXPECT_EQ(pieces->bos(), 1);
  EXPECT_EQ(pieces->eos(), 2);
}

TEST(Tokenizer, RefusesNamesOfNothing) {
  const fixtures::TempFolder folder;
  const auto message = [](const std::string& name) {
    return fixtures::message_of<TokenizerError>([&] { open_tokenizer(name); });
  };
  EXPECT_THAT(message("bytes"), HasSubstr("there is no such file"));
  EXPECT_THAT(message(""), HasSubstr("there is no such file"));
  EXPECT_THAT(
      message(folder.path()), HasSubstr("neither a tokenizer.json nor"));
  EXPECT_THAT(
      message(folder.write("a.txt", "a")), HasSubstr("neither a *.json nor"));
  folder.write("a.model", "");
  EXPECT_THAT(message(folder / "a.model"), HasSubstr("not a model"));
  folder.write("b.model", "x");
  EXPECT_THAT(message(folder.path()), HasSubstr("several *.model files"));
  EXPECT_THAT(
      message(folder.write("b.json", "{\"model\": ")),
      HasSubstr("b.json: not JSON"));
}

// ---- files that are not supported, or damaged -------------------------------

struct Refusal {
  std::string path;  // a JSON pointer
  std::string value; // put there
  std::string message;
};

TEST(TokenizerJson, RefusesByName) {
  const std::vector<Refusal> refusals = {
      {"/model/type", R"("WordPiece")", "t.json: model: WordPiece is not supp"},
      {"/model/type", R"("Unigram")", "model: Unigram is not supported"},
      {"/model/dropout", "0.1", "model.dropout: is not supported"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix: "},
      {"/model/continuing_subword_prefix", R"("##")", "subword_prefix: is not"},
      {"/model/unk_token",
       R"("<none>")",
       "\"<none>\" is not in the vocabulary"},
      {"/model/vocab", "[]", "model.vocab: expected an object"},
      {"/model/vocab/a", "-1", "model.vocab.a: expected an integer"},
      {"/model/vocab/a", "1.5", "model.vocab.a: expected an integer"},
      {"/model/vocab/a", "4000000000", "model.vocab.a: expected an integer"},
      {"/model/vocab/a", "20000000", "the largest allowed id is 16777215"},
      {"/model/vocab/a", "5", "both have id 5"},
      {"/model/merges", "{}", "model.merges: expected a list"},
      {"/model/merges/0", R"("ab")", "model.merges[0]: expected two tokens"},
      {"/model/merges/0", R"(["a"])", "model.merges[0]: expected 2 tokens"},
      {"/model/merges/0", R"(["a", 1])", "model.merges[0][1]: expected a str"},
      {"/model/merges/1", R"(["a", "\u2581"])", "\" is not in the vocabulary"},
      {"/normalizer", R"({"type": "NFKC"})", "normalizer: NFKC is not supp"},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
       "normalizer.normalizers[0]: Lowercase is not supported"},
      {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})", "BertPreTokenizer"},
      {"/pre_tokenizer", R"({"no": 1})", "pre_tokenizer: has no \"type\""},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers":
           [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       "Digits after ByteLevel is not supported"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "a(b"},
           "behavior": "Isolated"})",
       "pre_tokenizer: pattern `a(b`: missing closing parenthesis"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "a\\b"},
           "behavior": "Isolated"})",
       "`\\b` is not supported"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})",
       "pre_tokenizer.behavior: \"Odd\" is not supported"},
      {"/decoder", R"({"type": "WordPiece"})", "decoder: WordPiece is not"},
      {"/post_processor", R"({"type": "BertProcessing"})", "BertProcessing"},
      {"/added_tokens/0/id",
       "7",
       "has id 7 here, expected 0 from the vocabulary"},
      {"/added_tokens", "3", "added_tokens: expected a list"},
  };
  for (const Refusal& refusal : refusals) {
    json file = tokenizer_file("gpt2.json");
    file[json::json_pointer(refusal.path)] = json::parse(refusal.value);
    EXPECT_THAT(refusal_of(file), HasSubstr(refusal.message)) << refusal.path;
  }
  EXPECT_EQ(refusal_of(tokenizer_file("gpt2.json")), "");
}

TEST(TokenizerJson, RefusesEveryBeginning) {
  const std::string text = fixtures::read_text(kOracle + "tokens/gpt2.json");
  for (size_t length = 0; length < text.size(); length += 61) {
    const std::string_view part = std::string_view(text).substr(0, length);
    EXPECT_THAT(
        fixtures::message_of<TokenizerError>(
            [&] { parse_tokenizer_json(part, "t"); }),
        HasSubstr("t: not JSON"))
        << length;
  }
}

// Takes it or refuses it, and if it takes it, encodes.
template <class Open>
int open_damaged(const std::string& content, const Open& open) {
  int refused = 0;
  uint64_t random = 88172645463325252ULL;
  const auto next = [&](size_t most) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<size_t>(random % most);
  };
  for (int round = 0; round < 400; ++round) {
    std::string damaged = content;
    for (size_t i = 0; i <= next(4); ++i) {
      damaged[next(damaged.size())] = static_cast<char>(next(256));
    }
    if (round % 3 == 0) {
      const size_t begin = next(damaged.size());
      damaged.erase(begin, next(40));
    }
    try {
      const auto tokenizer = open(damaged);
      tokenizer->decode(tokenizer->encode("Hello, w\xc3\xb6rld 123 <mask>"));
    } catch (const TokenizerError&) {
      ++refused;
    }
  }
  return refused;
}

TEST(TokenizerJson, SurvivesDamage) {
  for (const char* name : {"gpt2.json", "llama2.json", "metaspace.json"}) {
    const int refused = open_damaged(
        fixtures::read_text(kOracle + "tokens/" + name),
        [](const std::string& text) {
          return parse_tokenizer_json(text, "t.json");
        });
    EXPECT_GT(refused, 50) << name;
  }
}

TEST(SentencePiece, SurvivesDamage) {
  const fixtures::TempFolder folder;
  const std::string content =
      fixtures::read_text(kOracle + "tokens/bytes.model");
  for (size_t length = 0; length < content.size(); length += 977) {
    try {
      open_tokenizer(folder.write("t.model", content.substr(0, length)))
          ->encode("Hello");
    } catch (const TokenizerError&) {
    }
  }
  EXPECT_THAT(
      fixtures::message_of<TokenizerError>(
          [&] { open_tokenizer(folder.write("t.model", "no model")); }),
      HasSubstr("t.model: not a model"));
}

// ---- pieces of it -----------------------------------------------------------

TEST(Pattern, SaysInPcre2WhatOnigurumaReads) {
  EXPECT_EQ(
      translate_pattern("a\\s\\S+"), "a\\p{White_Space}\\P{White_Space}+");
  EXPECT_EQ(
      translate_pattern("[^\\s\\w]"),
      "[^\\p{White_Space}\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]");
  EXPECT_EQ(
      translate_pattern("\\W"),
      "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe]");
  EXPECT_EQ(
      translate_pattern("\\p{Han}\\P{L}\\p{^Lu}"), "\\p{sc:Han}\\P{L}\\P{Lu}");
  EXPECT_EQ(
      translate_pattern("\\u4e00\\x{1F600}\\x41\\v"),
      "\\x{4e00}\\x{1F600}\\x{41}\\x0b");
  for (const char* refused :
       {"\\h",
        "\\X",
        "\\K",
        "(?<name>a)",
        "[a&&b]",
        "[[:alpha:]]",
        "a{1,2}+",
        "[\\W]",
        "a(?i)b",
        "\\",
        "[a",
        "\\p",
        "\\xff",
        "(?#note)"}) {
    EXPECT_NE(
        fixtures::message_of<TokenizerError>(
            [&] { translate_pattern(refused); }),
        "")
        << refused;
  }
}

TEST(Utf8, ReadsWhatItWrites) {
  for (const char32_t c :
       {0U, 0x7fU, 0x80U, 0x7ffU, 0x800U, 0xffffU, 0x10000U, 0x10ffffU}) {
    std::string text;
    append_utf8(text, c);
    EXPECT_FALSE(find_invalid_utf8(text)) << static_cast<uint32_t>(c);
    EXPECT_EQ(utf8_length(text[0]), text.size());
    EXPECT_EQ(utf8_at(text, 0), c);
  }
}

// oracle/random_tokenizers.py: random tables of added tokens, and random chains
// of normalizers and pre-tokenizers.
TEST(Tokenizer, RandomTokenizersCutAsTheLibrary) {
  for (const char* name : {"added_tokens.jsonl", "chains.jsonl"}) {
    std::istringstream lines(fixtures::read_text(kOracle + name));
    std::string line;
    std::getline(lines, line);
    const json bases = json::parse(line)["bases"];
    int texts = 0;
    while (std::getline(lines, line)) {
      const json each = json::parse(line);
      json file = bases[each["of"].get<std::string>()];
      file.merge_patch(each["with"]);
      const auto tokenizer = from_json(file);
      for (size_t i = 0; i < each["texts"].size(); ++i) {
        const std::string text = each["texts"][i];
        EXPECT_EQ(tokenizer->encode(text), each["ids"][i].get<Ids>())
            << name << " " << each["with"].dump() << " " << each["texts"][i];
        ++texts;
      }
    }
    EXPECT_GT(texts, 1900) << name;
  }
}

// On these the library itself panics; what is left of a token that another one
// took the spaces of is nothing.
TEST(Tokenizer, ATokenThatAnotherOneTookIsNone) {
  json file = tokenizer_file("metaspace.json");
  const auto size = file["model"]["vocab"].size();
  file["added_tokens"].push_back(
      {{"id", size}, {"content", "<r>"}, {"rstrip", true}});
  file["added_tokens"].push_back(
      {{"id", file["model"]["vocab"]["\n"]},
       {"content", "\n"},
       {"lstrip", true}});
  const auto tokenizer = from_json(file);
  const auto id = static_cast<int64_t>(size);
  EXPECT_EQ(tokenizer->encode("<r>\n \n"), (Ids{id}));
}

} // namespace
} // namespace weft::tokenizers::tokenizer_test
