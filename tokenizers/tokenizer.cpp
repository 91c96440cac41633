#include "tokenizers/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "tokenizers/sentence_piece.h"
#include "tokenizers/tokenizer_file.h"
#include "tokenizers/tokenizer_json.h"

namespace weft::tokenizers {
namespace {

namespace fs = std::filesystem;

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char byte : text) {
      tokens.push_back(static_cast<unsigned char>(byte));
    }
    return tokens;
  }

  void encode_to(std::string_view text, const TokenSink& sink) const override {
    constexpr size_t kPart = 1 << 14;
    for (size_t i = 0; i < text.size(); i += kPart) {
      sink(encode(text.substr(i, kPart)), std::min(i + kPart, text.size()));
    }
  }

  std::string decode(std::span<const int64_t> tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const int64_t token : tokens) {
      check_token(token, kVocabSize);
      text += static_cast<char>(token);
    }
    return text;
  }

  int64_t vocab_size() const override { return kVocabSize; }
  std::optional<int64_t> bos() const override { return std::nullopt; }
  std::optional<int64_t> eos() const override { return std::nullopt; }
  std::string describe() const override { return "bytes"; }
  std::string fingerprint_text() const override {
    return content_fingerprint("byte");
  }
};

[[noreturn]] void refuse_name(
    const std::string& name,
    const std::string& reason) {
  mesh::throw_error<TokenizerError>(fmt::format(
      "tokenizer \"{}\": {}. Expected \"byte\", a SentencePiece *.model, a "
      "tokenizer.json, or a folder that contains one of the two",
      name,
      reason));
}

std::string file_in(const std::string& folder) {
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "sentencepiece.bpe.model"}) {
    const fs::path path = fs::path(folder) / name;
    if (fs::is_regular_file(path)) {
      return path.native();
    }
  }
  std::vector<std::string> models;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".model" && entry.is_regular_file()) {
      models.push_back(entry.path().native());
    }
  }
  if (models.size() != 1) {
    refuse_name(
        folder,
        models.empty()
            ? "the folder has neither a tokenizer.json nor a *.model"
            : "the folder has several *.model files, give one of them");
  }
  return models[0];
}

} // namespace

void Tokenizer::encode_to(std::string_view text, const TokenSink& sink) const {
  sink(encode(text), text.size());
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name_or_path) {
  if (name_or_path == "byte") {
    return std::make_unique<ByteTokenizer>();
  }
  std::error_code error;
  if (name_or_path.empty() || !fs::exists(name_or_path, error)) {
    refuse_name(name_or_path, "there is no such file");
  }
  const std::string path =
      fs::is_directory(name_or_path) ? file_in(name_or_path) : name_or_path;
  const std::string extension = fs::path(path).extension();
  if (extension == ".json") {
    return open_tokenizer_json(path);
  }
  if (extension == ".model") {
    return open_sentence_piece(path);
  }
  refuse_name(name_or_path, "the file is neither a *.json nor a *.model");
}

} // namespace weft::tokenizers
