#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "tokenizers/json_node.h"

namespace weft::recipes {

/// Takes a piece of text, and whether the whole text begins with it.
using PieceSink = c10::function_ref<void(std::string_view, bool)>;

/// Cuts text into pieces that no token crosses, from left to right; none is
/// empty. What it hands on may be changed text, valid during the call.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void split(std::string_view text, bool at_start, PieceSink sink)
      const = 0;
};

/// Several, each cutting the pieces of the one before.
class PreTokenizers {
 public:
  /// What stands at `pre_tokenizer` in a tokenizer.json; nullopt: nothing.
  /// Throws: TokenizerError naming what is not supported.
  explicit PreTokenizers(const std::optional<JsonNode>& node);

  /// Whether the pieces are then spelt in GPT-2's alphabet of bytes.
  bool is_byte_level() const { return is_byte_level_; }
  bool empty() const { return stages_.empty(); }

  void split(std::string_view text, bool at_start, PieceSink sink) const;

 private:
  void add(const JsonNode& node);
  void run(size_t stage, std::string_view text, bool at_start, PieceSink sink)
      const;

  std::vector<std::unique_ptr<PreTokenizer>> stages_;
  bool is_byte_level_ = false;
};

} // namespace weft::recipes
