#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace weft::inference {

/// Returns how many bytes at the end of `text` are the start of an incomplete
/// UTF-8 character.
size_t unfinished_bytes(const std::string& text);

/// Converts tokens to text as they arrive. The text of a token may depend on
/// earlier ones (a space, a part of a character), so all tokens so far are
/// decoded together, and text that may still change is held until it is final.
class TextStream {
 public:
  /// `tokenizer` may be null: tokens are then printed as numbers separated by
  /// spaces. `prompt` comes first and is not returned.
  TextStream(
      const tokenizers::Tokenizer* tokenizer,
      std::span<const int64_t> prompt);

  /// Adds a token and returns the text that is final now.
  std::string add(int64_t token);
  /// Returns the remaining text.
  std::string finish();

 private:
  std::string decoded() const;
  void forget_old_tokens();

  const tokenizers::Tokenizer* tokenizer_;
  /// The most recent tokens, and the number of bytes of their text that were
  /// returned.
  std::vector<int64_t> tokens_;
  size_t given_ = 0;
  bool is_first_ = true;
};

/// Returns the text of `tokens`, which follow `prompt`.
std::string text_after(
    const tokenizers::Tokenizer* tokenizer,
    std::span<const int64_t> prompt,
    std::span<const int64_t> tokens);

} // namespace weft::inference
