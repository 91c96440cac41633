#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/json_node.h"

namespace weft::tokenizers {

// Note [Where a text begins]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// Hugging Face's library knows for every byte of a changed text which character
// of the given text it comes from, and Metaspace's "first" is a piece whose
// first byte comes from offset 0. Bytes come from their places in order, so the
// length of the head is enough: of the front whose bytes come from the first
// character. It is 0 if that character was stripped, or was replaced together
// with the next one: what a match is replaced by comes from the match's last
// byte, if that is none, from the byte before, and at the beginning from
// offset 0.

/// A text and the length of its head.
struct HeadedText {
  std::string text;
  size_t head = 0;
};

/// Returns the length of the head of the part [begin, end) of a text.
constexpr size_t head_of_part(size_t head, size_t begin, size_t end) {
  return std::clamp(head, begin, end) - begin;
}

/// Changes text before it is split.
class Normalizers {
 public:
  /// Reads `normalizer` of a tokenizer.json. nullopt changes nothing.
  /// Throws: TokenizerError with the component if it is not supported.
  explicit Normalizers(const std::optional<JsonNode>& node);

  bool empty() const { return steps_.empty(); }
  HeadedText apply(std::string_view text) const;

 private:
  using Step = std::function<HeadedText(HeadedText)>;
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

/// Returns `text` with all occurrences of `pattern` replaced, from left to
/// right. An empty pattern has no occurrences.
std::string replace_all(
    std::string_view text,
    std::string_view pattern,
    std::string_view content);

} // namespace weft::tokenizers
