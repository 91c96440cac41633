#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizers/json_node.h"

namespace weft::recipes {

/// Makes text of the names of tokens.
class TokenDecoder {
 public:
  /// What stands at `decoder` in a tokenizer.json; nullopt: names with spaces
  /// between. Throws: TokenizerError naming what is not supported.
  explicit TokenDecoder(const std::optional<JsonNode>& node);

  std::string decode(std::vector<std::string> names) const;

 private:
  using Names = std::vector<std::string>;
  using Step = std::function<Names(Names)>;
  void add(const JsonNode& node);

  void add_metaspace(const JsonNode& node);

  bool joins_with_spaces_;
  std::vector<Step> steps_;
};

} // namespace weft::recipes
