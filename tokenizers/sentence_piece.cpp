#include "tokenizers/sentence_piece.h"

#include <utility>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "tokenizers/tokenizer_file.h"

namespace weft::tokenizers {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& content, std::string path)
      : path_(std::move(path)), fingerprint_(content_fingerprint(content)) {
    // The library accepts everything that protobuf can parse, including an
    // empty file.
    check(processor_.LoadFromSerializedProto(content), "not a model");
    if (processor_.GetPieceSize() == 0) {
      fail("not a model: it has no pieces");
    }
    byte_a_ = processor_.PieceToId("<0x61>");
    if (!processor_.IsByte(byte_a_)) {
      byte_a_ = -1;
    }
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    check_text(text);
    check_size(text.size());
    std::vector<int> ids;
    check(processor_.Encode(text, &ids), "cannot encode");
    return {ids.begin(), ids.end()};
  }

  // Note [Bytes that are no character]
  // ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
  // The library decodes bytes that are not a complete character to U+FFFD. A
  // caller that decodes a stream of tokens then cannot distinguish half a
  // character from an invalid one, so this function joins the bytes itself.
  // Tokens that follow bytes are decoded behind an "a", which is removed
  // afterwards, because the library removes the leading space of the first
  // piece of a text.
  std::string decode(std::span<const int64_t> tokens) const override {
    std::string text;
    std::vector<int> run;
    bool is_first = true;
    const auto flush = [&] {
      if (!run.empty()) {
        text += decode_run(run, is_first);
        is_first = false;
        run.clear();
      }
    };
    for (const int64_t token : tokens) {
      check_token(token, vocab_size());
      const int id = static_cast<int>(token);
      if (!processor_.IsByte(id) || byte_a_ < 0) {
        run.push_back(id);
        continue;
      }
      flush();
      is_first = false;
      text += byte_of(id);
    }
    flush();
    return text;
  }

  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<int64_t> bos() const override {
    return known(processor_.bos_id());
  }
  std::optional<int64_t> eos() const override {
    return known(processor_.eos_id());
  }
  std::string describe() const override {
    return fmt::format("SentencePiece of {} tokens ({})", vocab_size(), path_);
  }
  std::string fingerprint_text() const override { return fingerprint_; }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    mesh::throw_error<TokenizerError>(fmt::format("{}: {}", path_, reason));
  }

  void check(const sentencepiece::util::Status& status, const std::string& what)
      const {
    if (!status.ok()) {
      fail(fmt::format("{}: {}", what, status.ToString()));
    }
  }

  // The library processes a text at once and needs 130 times its size in
  // memory.
  void check_size(size_t size) const {
    constexpr size_t kMax = 64 << 20;
    if (size > kMax) {
      fail(fmt::format(
          "a text of {} bytes is too long for SentencePiece; the limit is {}. "
          "Split it into documents (--document-separator)",
          size,
          kMax));
    }
  }

  static std::optional<int64_t> known(int id) {
    return id < 0 ? std::nullopt : std::optional<int64_t>(id);
  }

  // Returns the byte of a piece such as "<0x0A>".
  char byte_of(int id) const {
    const std::string& piece = processor_.IdToPiece(id);
    return static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
  }

  std::string decode_run(std::vector<int> run, bool is_first) const {
    if (!is_first) {
      run.insert(run.begin(), byte_a_);
    }
    std::string text;
    check(processor_.Decode(run, &text), "cannot decode");
    return is_first ? text : text.substr(1);
  }

  std::string path_;
  std::string fingerprint_;
  sentencepiece::SentencePieceProcessor processor_;
  int byte_a_ = -1;
};

} // namespace

std::unique_ptr<Tokenizer> open_sentence_piece(const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(
      read_tokenizer_file(path), path);
}

} // namespace weft::tokenizers
