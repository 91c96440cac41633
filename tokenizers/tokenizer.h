#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mesh/error/error.h"

namespace weft::tokenizers {

/// Thrown if a tokenizer's file cannot be used, or if it cannot encode a text.
class TokenizerError : public mesh::UsageError {
  using mesh::UsageError::UsageError;
};

/// Thrown if a text is not UTF-8.
class InvalidText : public TokenizerError {
 public:
  InvalidText(c10::SourceLocation where, std::string message, size_t offset)
      : TokenizerError(where, std::move(message)), offset_(offset) {}
  /// The offset of the first byte that does not belong to a character.
  size_t offset() const { return offset_; }

 private:
  size_t offset_;
};

/// A callback that receives the next tokens of a text, and approximately how
/// many of its bytes are done.
using TokenSink = std::function<void(std::span<const int64_t>, size_t)>;

/// Converts text to tokens and back. A tokenizer caches the encodings of words
/// and is not thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the tokens of `text` without begin and end tokens. The caller adds
  /// bos() and eos() if it needs them. Special tokens that are spelled out in
  /// the text are recognized if the tokenizer's own library does so.
  /// Throws: InvalidText if the text is not UTF-8. The tokenizer "byte" accepts
  /// any bytes.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;

  /// Passes the tokens of encode() to `sink` in order and in parts. If the
  /// tokenizer supports it, the memory for this does not grow with the text.
  virtual void encode_to(std::string_view text, const TokenSink& sink) const;

  /// Returns the text of `tokens` without special tokens. A character that
  /// spans several tokens, some of which are missing, is not valid UTF-8.
  /// Throws: TokenizerError if a token is not in [0, vocab_size()).
  virtual std::string decode(std::span<const int64_t> tokens) const = 0;

  /// Returns the largest token plus one.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int64_t> bos() const = 0;
  virtual std::optional<int64_t> eos() const = 0;

  /// Returns "byte-level BPE of 128256 tokens (llama/tokenizer.json)".
  virtual std::string describe() const = 0;
  /// Returns 16 hexadecimal digits, a hash of the file's content. Two runs have
  /// the same tokenizer if their hashes are equal.
  virtual std::string fingerprint_text() const = 0;
};

/// Opens a tokenizer: "byte" (256 tokens, one per byte), a SentencePiece
/// *.model, a Hugging Face tokenizer.json, or a folder with one of the two. If
/// a folder has both, tokenizer.json is used.
/// Throws: TokenizerError with the file if it cannot be used, and with the name
/// of a component if that is not supported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name_or_path);

} // namespace weft::tokenizers
