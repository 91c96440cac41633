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

namespace weft::recipes {

/// A token that is found in the text as it is, before words are.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = true;
  bool special = false;
};

/// A set of strings, of which the leftmost and there the longest is found.
class StringFinder {
 public:
  void add(std::string_view text, const AddedToken* token);
  bool empty() const { return steps_.empty(); }

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  /// The first match at `from` or later; its token is null where there is none.
  Match find(std::string_view text, size_t from) const;

 private:
  // A trie: (node, byte) to the next node, and the tokens that end in nodes.
  std::unordered_map<uint64_t, uint32_t> steps_;
  std::vector<const AddedToken*> ends_{nullptr};
  bool begins_[256] = {};
};

/// `added_tokens` of a tokenizer.json.
class AddedTokens {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  /// Throws: TokenizerError for a token whose id is not the one that it gets.
  AddedTokens(
      const std::optional<JsonNode>& node,
      const Vocabulary& vocabulary,
      const Normalizers& normalizers);

  /// Takes a part of the text and the token that it is, or null.
  using PartSink = c10::function_ref<void(std::string_view, const AddedToken*)>;
  /// Cuts raw text at tokens that are not normalized, normalized text at
  /// those that are.
  void split(std::string_view text, bool is_normalized, PartSink sink) const;

  /// As normalization leaves them, by id.
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

} // namespace weft::recipes
