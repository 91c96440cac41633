#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "tokenizers/json_node.h"

namespace weft::tokenizers {

/// A callback that receives a piece of text and the length of its head. See
/// Note [Where a text begins].
using PieceSink = c10::function_ref<void(std::string_view, size_t)>;

/// Splits text from left to right into pieces that no token crosses. No piece
/// is empty. Pieces may be changed text and are valid during the call only.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void split(std::string_view text, size_t head, PieceSink sink)
      const = 0;
};

/// A sequence of pre-tokenizers, each of which splits the pieces of the one
/// before.
class PreTokenizers {
 public:
  /// Reads `pre_tokenizer` of a tokenizer.json. nullopt splits nothing.
  /// Throws: TokenizerError with the component if it is not supported.
  explicit PreTokenizers(const std::optional<JsonNode>& node);

  /// Returns true if the model has to read the pieces as bytes in GPT-2's
  /// alphabet.
  bool is_byte_level() const { return is_byte_level_; }
  bool empty() const { return stages_.empty(); }

  void split(std::string_view text, size_t head, PieceSink sink) const;

 private:
  void add(const JsonNode& node);
  void run(size_t stage, std::string_view text, size_t head, PieceSink sink)
      const;

  std::vector<std::unique_ptr<PreTokenizer>> stages_;
  bool is_byte_level_ = false;
};

} // namespace weft::tokenizers
