#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "tokenizers/json_node.h"
#include "tokenizers/normalizer.h"

namespace weft::tokenizers {

/// A token that is matched in the text itself, before the text is split into
/// words.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = true;
  bool special = false;
};

/// A set of strings to search for. find() returns the leftmost match, and the
/// longest one at that place.
class StringFinder {
 public:
  void add(std::string_view text, const AddedToken* token);
  bool empty() const { return steps_.empty(); }

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  /// Returns the first match at `from` or later. Its token is null if there is
  /// none.
  Match find(std::string_view text, size_t from) const;

 private:
  // A trie: (node, byte) to the next node, and the tokens that end in nodes.
  std::unordered_map<uint64_t, uint32_t> steps_;
  std::vector<const AddedToken*> ends_{nullptr};
  bool begins_[256] = {};
};

/// The `added_tokens` of a tokenizer.json.
class AddedTokens {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  /// Throws: TokenizerError if the id of a token is not the one that Hugging
  /// Face's library assigns.
  AddedTokens(
      const std::optional<JsonNode>& node,
      const Vocabulary& vocabulary,
      const Normalizers& normalizers);

  /// A callback that receives a part of the text and its token. Null means that
  /// the part is not an added token.
  using PartSink = c10::function_ref<void(std::string_view, const AddedToken*)>;
  /// Splits raw text at the tokens that are not normalized, or normalized text
  /// at those that are.
  void split(std::string_view text, bool is_normalized, PartSink sink) const;

  /// The texts of the tokens after normalization, by id.
  const std::map<int32_t, std::string>& texts() const { return texts_; }
  const AddedToken* find(const std::string& content) const;
  bool is_special(const std::string& text) const;

 private:
  void assign_id(const JsonNode& node, AddedToken& token, int32_t& next_id);

  const Vocabulary& vocabulary_;
  std::map<std::string, AddedToken, std::less<>> tokens_;
  std::map<int32_t, std::string> texts_;
  StringFinder raw_;
  StringFinder normalized_;
};

} // namespace weft::tokenizers
