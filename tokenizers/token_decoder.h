#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizers/json_node.h"

namespace weft::tokenizers {

/// Converts the names of tokens to text.
class TokenDecoder {
 public:
  /// Reads `decoder` of a tokenizer.json. nullopt joins the names with spaces.
  /// Throws: TokenizerError with the component if it is not supported.
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

} // namespace weft::tokenizers
