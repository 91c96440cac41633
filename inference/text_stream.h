#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizers/tokenizer.h"

namespace weft::recipes {

/// How many bytes at the end of `text` begin a UTF-8 character that may go on.
size_t unfinished_bytes(const std::string& text);

/// Turns tokens into text as they come. What a token means may depend on those
/// before it (a space, a part of a character): the text so far is decoded
/// together, and what may still change is kept back.
class TextStream {
 public:
  /// `tokenizer` may be null: then tokens are their numbers, with spaces
  /// between. `prompt` comes before, and is not given out.
  TextStream(const Tokenizer* tokenizer, std::span<const int64_t> prompt);

  /// The text that `token` makes certain.
  std::string add(int64_t token);
  /// What was kept back.
  std::string finish();

 private:
  std::string decoded() const;
  void forget_old_tokens();

  const Tokenizer* tokenizer_;
  /// The latest tokens, and how many bytes of their text are out.
  std::vector<int64_t> tokens_;
  size_t given_ = 0;
  bool is_first_ = true;
};

/// The text of all of `tokens`, which follow `prompt`.
std::string text_after(
    const Tokenizer* tokenizer,
    std::span<const int64_t> prompt,
    std::span<const int64_t> tokens);

} // namespace weft::recipes
