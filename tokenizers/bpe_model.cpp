#include "tokenizers/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tokenizers/byte_alphabet.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/utf8.h"

namespace weft::tokenizers {
namespace {

constexpr std::string_view kMetaspace = "\xe2\x96\x81"; // U+2581
constexpr int32_t kMaxTokens = 1 << 24;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

// Returns the two tokens of a merge, which is ["a", "b"] or "a b".
std::pair<std::string, std::string> read_pair(const JsonNode& node) {
  if (node.value().is_array()) {
    const auto parts = node.elements();
    if (parts.size() != 2) {
      node.refuse(fmt::format("expected 2 tokens, found {}", parts.size()));
    }
    return {parts[0].string(), parts[1].string()};
  }
  const std::string text = node.string();
  const size_t space = text.find(' ');
  if (space == std::string::npos ||
      text.find(' ', space + 1) != std::string::npos) {
    node.refuse(fmt::format(
        "expected two tokens with a space between, found \"{}\"", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

} // namespace

void MergeTable::reserve(size_t count) {
  size_t size = 16;
  while (size < 2 * count) {
    size *= 2;
  }
  slots_.assign(size, {});
}

size_t MergeTable::place_of(uint64_t pair) const {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;
  const size_t mask = slots_.size() - 1;
  const uint64_t mixed = (pair ^ pair >> 29) * kGolden;
  size_t place = (mixed >> 20) & mask;
  while (slots_[place].pair != pair && slots_[place].pair != kFree) {
    place = (place + 1) & mask;
  }
  return place;
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = pair_key(left, right);
  slots_[place_of(pair)] = {.pair = pair, .merge = merge};
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const Slot& slot = slots_[place_of(pair)];
  return slot.pair == pair ? &slot.merge : nullptr;
}

BpeModel::BpeModel(const JsonNode& node, bool is_byte_level)
    : is_byte_level_(is_byte_level) {
  // Files from before 2020 have no type.
  if (node.find("type") && node.type() != "BPE") {
    node.refuse_type();
  }
  read_vocabulary(node.at("vocab"));
  read_options(node);
  read_merges(node.at("merges"));
  constexpr size_t kKnownWords = 1 << 16;
  known_.resize(kKnownWords);
}

void BpeModel::read_vocabulary(const JsonNode& node) {
  if (!node.value().is_object()) {
    node.refuse("expected an object that maps tokens to ids");
  }
  vocabulary_.reserve(node.value().size());
  std::unordered_map<int32_t, std::string> seen;
  for (const auto& [token, id] : node.value().items()) {
    const int32_t number = node.at(token).count();
    if (number >= kMaxTokens) {
      node.refuse(fmt::format(
          "\"{}\" has id {}; the largest allowed id is {}",
          token,
          number,
          kMaxTokens - 1));
    }
    const auto [other, is_new] = seen.emplace(number, token);
    if (!is_new) {
      node.refuse(fmt::format(
          "\"{}\" and \"{}\" both have id {}", other->second, token, number));
    }
    vocabulary_.emplace(token, number);
  }
}

void BpeModel::read_options(const JsonNode& node) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto found = node.find(key);
    if (found && !found->string().empty()) {
      found->refuse("is not supported");
    }
  }
  if (const auto dropout = node.find("dropout");
      dropout && dropout->value() != 0) {
    dropout->refuse("is not supported");
  }
  ignore_merges_ = node.boolean("ignore_merges", false);
  fuse_unk_ = node.boolean("fuse_unk", false);
  byte_fallback_ = node.boolean("byte_fallback", false);
  if (const auto unk = node.find("unk_token")) {
    unk_ = id_of(*unk, unk->string());
  }
  if (is_byte_level_ && ignore_merges_) {
    for (const auto& [token, id] : vocabulary_) {
      if (auto bytes = decode_byte_level(token)) {
        words_.emplace(*std::move(bytes), id);
      }
    }
  } else if (ignore_merges_) {
    words_ = vocabulary_;
  }
  for (const char32_t character : byte_alphabet()) {
    std::string text;
    append_utf8(text, character);
    byte_units_.push_back(unit_of(text));
  }
}

int32_t BpeModel::id_of(const JsonNode& node, const std::string& token) const {
  const auto found = vocabulary_.find(token);
  if (found == vocabulary_.end()) {
    node.refuse(fmt::format("\"{}\" is not in the vocabulary", token));
  }
  return found->second;
}

void BpeModel::read_merges(const JsonNode& node) {
  const auto merges = node.elements();
  num_merges_ = merges.size();
  merges_.reserve(num_merges_);
  bool crosses = false;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const JsonNode& merge = merges[rank];
    const auto [left, right] = read_pair(merge);
    const std::string both = left + right;
    merges_.set(
        id_of(merge, left),
        id_of(merge, right),
        {.rank = static_cast<uint32_t>(rank), .id = id_of(merge, both)});
    crosses = crosses ||
              (!left.ends_with(kMetaspace) && right.starts_with(kMetaspace));
  }
  // See Note [Cutting where no merge reaches].
  cuts_before_metaspace_ = !is_byte_level_ && !ignore_merges_ && !crosses &&
                           vocabulary_.contains(std::string(kMetaspace));
}

BpeModel::Unit BpeModel::unit_of(const std::string& text) const {
  if (const auto found = vocabulary_.find(text); found != vocabulary_.end()) {
    return {.kind = Unit::Kind::kToken, .ids = {found->second}};
  }
  Unit unit{.kind = Unit::Kind::kFallback, .ids = {}};
  for (const char byte : byte_fallback_ ? text : std::string()) {
    const auto found = vocabulary_.find(
        fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
    if (found == vocabulary_.end()) {
      return {};
    }
    unit.ids.push_back(found->second);
  }
  return byte_fallback_ ? unit : Unit{};
}

// Note [Cutting where no merge reaches]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A tokenizer that was converted from a SentencePiece model does not split text
// into words. It replaces spaces by U+2581 and merges over the full text. Its
// merges never join another character with a U+2581 to its right, because that
// would join pieces of two words. If no merge in the file does, no merge can
// ever cross such a place, whatever the context is. So the text is split there,
// into parts that are as short as words and occur repeatedly, which makes the
// cache effective. U+2581 must itself be a token, so that a sequence of unknown
// characters ends before it.
void BpeModel::for_each_piece(
    std::string_view word,
    c10::function_ref<void(std::string_view)> visit) const {
  if (!cuts_before_metaspace_) {
    visit(word);
    return;
  }
  size_t begin = 0;
  while (begin < word.size()) {
    size_t end = begin;
    while (word.substr(end).starts_with(kMetaspace)) {
      end += kMetaspace.size();
    }
    end = std::min(word.find(kMetaspace, end), word.size());
    visit(word.substr(begin, end - begin));
    begin = end;
  }
}

void BpeModel::encode(std::string_view word, std::vector<int64_t>& tokens)
    const {
  constexpr size_t kLongestKnown = 64;
  KnownWord* known = nullptr;
  if (word.size() <= kLongestKnown) {
    const size_t hash = std::hash<std::string_view>()(word);
    known = &known_[hash & (known_.size() - 1)];
    if (known->word == word) {
      tokens.insert(tokens.end(), known->ids.begin(), known->ids.end());
      return;
    }
  }
  const size_t first = tokens.size();
  merge_word(word, tokens);
  if (known != nullptr) {
    known->word = word;
    known->ids.assign(
        tokens.begin() + static_cast<std::ptrdiff_t>(first), tokens.end());
  }
}

void BpeModel::merge_word(std::string_view word, std::vector<int64_t>& tokens)
    const {
  if (ignore_merges_) {
    if (const auto found = words_.find(std::string(word));
        found != words_.end()) {
      tokens.push_back(found->second);
      return;
    }
  }
  begin_symbols(word);
  merge_symbols();
  for (const Symbol& symbol : symbols_) {
    if (!symbol.is_merged) {
      tokens.push_back(symbol.id);
    }
  }
}

void BpeModel::add_symbol(int32_t id) const {
  const auto place = static_cast<int32_t>(symbols_.size());
  if (place > 0) {
    symbols_.back().next = place;
  }
  symbols_.push_back({.id = id, .previous = place - 1});
}

void BpeModel::begin_symbols(std::string_view word) const {
  if (word.size() > std::numeric_limits<int32_t>::max()) {
    mesh::throw_error<TokenizerError>(fmt::format(
        "a word of {} bytes is too long: this tokenizer does not split text "
        "into words and accepts at most 2 GiB at once",
        word.size()));
  }
  symbols_.clear();
  // An unknown character is pending. fuse_unk_ merges it with the next one.
  bool is_unknown = false;
  size_t step = 1;
  for (size_t i = 0; i < word.size(); i += step) {
    step = is_byte_level_ ? 1 : utf8_length(word[i]);
    const Unit* unit = nullptr;
    if (is_byte_level_) {
      unit = &byte_units_[static_cast<unsigned char>(word[i])];
    } else {
      std::string character(word.substr(i, step));
      auto found = character_units_.find(character);
      if (found == character_units_.end()) {
        Unit fresh = unit_of(character);
        found = character_units_.emplace(std::move(character), fresh).first;
      }
      unit = &found->second;
    }
    if (unit->kind == Unit::Kind::kUnknown && unk_) {
      if (is_unknown && !fuse_unk_) {
        add_symbol(*unk_);
      }
      is_unknown = true;
      continue;
    }
    if (unit->kind == Unit::Kind::kToken && is_unknown) {
      add_symbol(*unk_);
      is_unknown = false;
    }
    for (const int32_t id : unit->ids) {
      add_symbol(id);
    }
  }
  if (is_unknown) {
    add_symbol(*unk_);
  }
}

void BpeModel::add_candidate(int32_t place) const {
  const Symbol& symbol = symbols_[static_cast<size_t>(place)];
  if (symbol.next < 0) {
    return;
  }
  const auto* merge =
      merges_.find(symbol.id, symbols_[static_cast<size_t>(symbol.next)].id);
  if (merge != nullptr) {
    queue_.push_back({.rank = merge->rank, .place = place, .id = merge->id});
  }
}

void BpeModel::merge_symbols() const {
  queue_.clear();
  for (size_t i = 0; i < symbols_.size(); ++i) {
    add_candidate(static_cast<int32_t>(i));
  }
  std::make_heap(queue_.begin(), queue_.end());
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end());
    const Candidate first = queue_.back();
    queue_.pop_back();
    merge_at(first);
  }
}

void BpeModel::merge_at(const Candidate& candidate) const {
  Symbol& left = symbols_[static_cast<size_t>(candidate.place)];
  if (left.is_merged || left.next < 0) {
    return;
  }
  Symbol& right = symbols_[static_cast<size_t>(left.next)];
  const auto* merge = merges_.find(left.id, right.id);
  if (merge == nullptr || merge->id != candidate.id) {
    // Since then, one of the two symbols has become part of another.
    return;
  }
  left.id = candidate.id;
  left.next = right.next;
  right.is_merged = true;
  if (left.next >= 0) {
    symbols_[static_cast<size_t>(left.next)].previous = candidate.place;
  }
  for (const int32_t place : {left.previous, candidate.place}) {
    const size_t before = queue_.size();
    if (place >= 0) {
      add_candidate(place);
    }
    if (queue_.size() > before) {
      std::push_heap(queue_.begin(), queue_.end());
    }
  }
}

} // namespace weft::tokenizers
