#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/json_node.h"

namespace weft::recipes {

/// Changes text before it is cut.
class Normalizers {
 public:
  /// What stands at `normalizer` in a tokenizer.json; nullopt: nothing.
  /// Throws: TokenizerError naming what is not supported.
  explicit Normalizers(const std::optional<JsonNode>& node);

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  using Step = std::function<std::string(std::string)>;
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

/// `text` with all that equals `pattern` replaced, from left to right; an empty
/// pattern is nowhere.
std::string replace_all(
    std::string_view text,
    std::string_view pattern,
    std::string_view content);

} // namespace weft::recipes
