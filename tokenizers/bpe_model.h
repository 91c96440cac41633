#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "tokenizers/json_node.h"

namespace weft::tokenizers {

/// The pairs of tokens that are merged, and the order of the merges.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = 0;
  };

  void reserve(size_t count);
  /// Adds a merge. It replaces an earlier one of the same pair.
  void set(int32_t left, int32_t right, Merge merge);
  /// Returns the merge of a pair, or null if the pair is not merged.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};

  size_t place_of(uint64_t pair) const;

  std::vector<Slot> slots_;
};

/// Byte-pair encoding of words, as in `model` of a tokenizer.json. Caches the
/// encodings of words.
/// Source: Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words
/// with Subword Units (2016).
class BpeModel {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  /// With `is_byte_level`, words are bytes, and the vocabulary spells them in
  /// GPT-2's alphabet.
  /// Throws: TokenizerError if the model is malformed or not supported.
  BpeModel(const JsonNode& node, bool is_byte_level);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  size_t num_merges() const { return num_merges_; }

  /// Splits a word at the places that no merge can cross. Most words have no
  /// such place.
  void for_each_piece(
      std::string_view word,
      c10::function_ref<void(std::string_view)> visit) const;
  /// Appends the tokens of a word, or of a piece of one, to `tokens`.
  void encode(std::string_view word, std::vector<int64_t>& tokens) const;

 private:
  // What a character or byte begins with before anything is merged.
  struct Unit {
    enum class Kind { kToken, kFallback, kUnknown } kind = Kind::kUnknown;
    std::vector<int32_t> ids;
  };
  struct Symbol {
    int32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
    bool is_merged = false;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t place = 0;
    int32_t id = 0;
    // For a heap whose top is the first merge, and of equal ones the leftmost.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  struct KnownWord {
    std::string word;
    std::vector<int32_t> ids;
  };

  void read_vocabulary(const JsonNode& node);
  void read_merges(const JsonNode& node);
  void read_options(const JsonNode& node);
  int32_t id_of(const JsonNode& node, const std::string& token) const;
  Unit unit_of(const std::string& text) const;

  void merge_word(std::string_view word, std::vector<int64_t>& tokens) const;
  void begin_symbols(std::string_view word) const;
  void add_symbol(int32_t id) const;
  void add_candidate(int32_t place) const;
  void merge_symbols() const;
  void merge_at(const Candidate& candidate) const;

  bool is_byte_level_;
  bool ignore_merges_ = false;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool cuts_before_metaspace_ = false;
  std::optional<int32_t> unk_;
  Vocabulary vocabulary_;
  /// The vocabulary by the bytes of a word. Empty unless ignore_merges_ is set.
  Vocabulary words_;
  size_t num_merges_ = 0;
  MergeTable merges_;
  std::vector<Unit> byte_units_;
  // Working memory, and words met before, each where its hash says.
  mutable std::unordered_map<std::string, Unit> character_units_;
  mutable std::vector<Symbol> symbols_;
  mutable std::vector<Candidate> queue_;
  mutable std::vector<KnownWord> known_;
};

} // namespace weft::tokenizers
