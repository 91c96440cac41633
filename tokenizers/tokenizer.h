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

namespace weft::recipes {

/// A tokenizer's file that cannot be used, or bytes it cannot encode.
class TokenizerError : public mesh::UsageError {
  using mesh::UsageError::UsageError;
};

/// Text that is not UTF-8.
class InvalidText : public TokenizerError {
 public:
  InvalidText(c10::SourceLocation where, std::string message, size_t offset)
      : TokenizerError(where, std::move(message)), offset_(offset) {}
  /// Of the first byte that belongs to no character.
  size_t offset() const { return offset_; }

 private:
  size_t offset_;
};

/// Takes the next tokens of a text, and about how many of its bytes are done.
using TokenSink = std::function<void(std::span<const int64_t>, size_t)>;

/// Turns text into tokens and back. A tokenizer keeps what it has learnt about
/// words: not for several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The tokens of `text`, without begin and end tokens: who wants them puts
  /// bos() and eos() around. Special tokens that are spelt out in the text are
  /// found, where the tokenizer's own library finds them.
  /// Throws: InvalidText unless the text is UTF-8 (any bytes are tokens of
  /// "byte").
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;

  /// The same tokens, in order and in parts, which together need no memory that
  /// grows with the text where the tokenizer can do without.
  virtual void encode_to(std::string_view text, const TokenSink& sink) const;

  /// The text of `tokens`, special ones left out. A character that lies over
  /// several tokens of which some are missing is not valid UTF-8.
  /// Throws: TokenizerError for a token that is not in [0, vocab_size()).
  virtual std::string decode(std::span<const int64_t> tokens) const = 0;

  /// One more than the largest token.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int64_t> bos() const = 0;
  virtual std::optional<int64_t> eos() const = 0;

  /// "byte-level BPE of 128256 tokens (llama/tokenizer.json)".
  virtual std::string describe() const = 0;
  /// 16 hexadecimal digits, of the file's content: tells whether two runs have
  /// the same tokenizer.
  virtual std::string fingerprint_text() const = 0;
};

/// "byte" (each byte a token, 256 of them), a SentencePiece *.model, a Hugging
/// Face tokenizer.json, or a folder that holds one of the two (tokenizer.json
/// where it holds both).
/// Throws: TokenizerError with the file, and for a component that is not
/// supported with its name.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name_or_path);

} // namespace weft::recipes
