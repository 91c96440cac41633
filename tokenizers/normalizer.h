#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/json_node.h"

namespace weft::recipes {

/// Changes text before it is split.
class Normalizers {
 public:
  /// Reads `normalizer` of a tokenizer.json. nullopt changes nothing.
  /// Throws: TokenizerError with the component if it is not supported.
  explicit Normalizers(const std::optional<JsonNode>& node);

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  using Step = std::function<std::string(std::string)>;
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

/// Returns `text` with all occurrences of `pattern` replaced, from left to
/// right. An empty pattern has no occurrences.
std::string replace_all(
    std::string_view text,
    std::string_view pattern,
    std::string_view content);

} // namespace weft::recipes
