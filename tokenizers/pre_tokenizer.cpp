#include "tokenizers/pre_tokenizer.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "tokenizers/normalizer.h"
#include "tokenizers/pattern.h"
#include "tokenizers/tokenizer.h"

namespace weft::tokenizers {
namespace {

enum class Behavior {
  kIsolated,
  kRemoved,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

// A splitter of a text into the matches of a pattern and the parts in between,
// which it joins according to the behavior.
class Cutter {
 public:
  Cutter(
      std::string_view text,
      size_t head,
      Behavior behavior,
      bool invert,
      PieceSink sink)
      : text_(text),
        head_(head),
        behavior_(behavior),
        invert_(invert),
        sink_(sink) {}

  void match(size_t begin, size_t end) {
    if (begin > done_) {
      part(done_, begin, invert_);
    }
    part(begin, end, !invert_);
    done_ = end;
  }

  void finish() {
    if (done_ < text_.size()) {
      part(done_, text_.size(), invert_);
    }
    flush();
  }

 private:
  void part(size_t begin, size_t end, bool is_match) {
    if (behavior_ == Behavior::kIsolated || behavior_ == Behavior::kRemoved) {
      if (!is_match || behavior_ == Behavior::kIsolated) {
        emit(begin, end);
      }
      return;
    }
    if (joins(is_match)) {
      held_end_ = end;
    } else {
      flush();
      held_begin_ = begin;
      held_end_ = end;
    }
    holds_ = true;
    last_was_match_ = is_match;
  }

  bool joins(bool is_match) const {
    switch (behavior_) {
      case Behavior::kMergedWithPrevious:
        return holds_ && is_match && !last_was_match_;
      case Behavior::kMergedWithNext:
        return holds_ && !is_match && last_was_match_;
      default:
        return holds_ && is_match == last_was_match_;
    }
  }

  void flush() {
    if (holds_) {
      emit(held_begin_, held_end_);
      holds_ = false;
    }
  }

  void emit(size_t begin, size_t end) {
    if (begin < end) {
      sink_(text_.substr(begin, end - begin), head_of_part(head_, begin, end));
    }
  }

  std::string_view text_;
  size_t head_;
  Behavior behavior_;
  bool invert_;
  PieceSink sink_;
  size_t done_ = 0;
  size_t held_begin_ = 0;
  size_t held_end_ = 0;
  bool holds_ = false;
  bool last_was_match_ = false;
};

// The pre-tokenizers Split, Digits, Punctuation and WhitespaceSplit.
class SplitByPattern : public PreTokenizer {
 public:
  SplitByPattern(Pattern pattern, Behavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view text, size_t head, PieceSink sink)
      const override {
    Cutter cutter(text, head, behavior_, invert_, sink);
    pattern_.for_each(text, [&](const Pattern::Match& match) {
      cutter.match(match.begin, match.end);
    });
    cutter.finish();
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// The words of GPT-2, or the unchanged text. Hugging Face's pre-tokenizer also
// spells the pieces in an alphabet of bytes. This is unnecessary here, because
// the model reads bytes.
class ByteLevelWords : public PreTokenizer {
 public:
  ByteLevelWords(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space) {
    if (use_regex) {
      words_ = std::make_unique<SplitByPattern>(
          Pattern("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                  " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"),
          Behavior::kIsolated);
    }
  }

  void split(std::string_view text, size_t head, PieceSink sink)
      const override {
    std::string prefixed;
    if (add_prefix_space_ && !text.starts_with(' ')) {
      prefixed = " ";
      prefixed += text;
      text = prefixed;
      head += head > 0 ? 1 : 0;
    }
    if (words_) {
      words_->split(text, head, sink);
    } else {
      sink(text, head);
    }
  }

 private:
  bool add_prefix_space_;
  std::unique_ptr<SplitByPattern> words_;
};

// A pre-tokenizer that replaces spaces by a visible character, which then
// begins words.
class Metaspace : public PreTokenizer {
 public:
  enum class Prepend { kAlways, kFirst, kNever };

  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend) {
    if (split) {
      words_ = std::make_unique<SplitByPattern>(
          Pattern::literal(replacement_), Behavior::kMergedWithNext);
    }
  }

  void split(std::string_view text, size_t head, PieceSink sink)
      const override {
    std::string spelt;
    const bool begins_word =
        text.starts_with(' ') || text.starts_with(replacement_);
    if (!begins_word && (prepend_ == Prepend::kAlways ||
                         (prepend_ == Prepend::kFirst && head > 0))) {
      spelt += replacement_;
    }
    size_t spelt_head = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == ' ') {
        spelt += replacement_;
      } else {
        spelt += text[i];
      }
      if (i < head) {
        spelt_head = spelt.size();
      }
    }
    if (words_) {
      words_->split(spelt, spelt_head, sink);
    } else {
      sink(spelt, spelt_head);
    }
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  std::unique_ptr<SplitByPattern> words_;
};

Behavior read_behavior(const JsonNode& node) {
  const std::string name = node.string();
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
  }
  node.refuse(fmt::format("\"{}\" is not supported", name));
}

std::unique_ptr<PreTokenizer> read_split(const JsonNode& node) {
  const auto [kind, text] = node.at("pattern").pattern();
  try {
    return std::make_unique<SplitByPattern>(
        kind == "String" ? Pattern::literal(text) : Pattern(text),
        read_behavior(node.at("behavior")),
        node.boolean("invert", false));
  } catch (const TokenizerError& error) {
    const std::string reason = error.what_without_backtrace();
    if (reason.starts_with("pattern ")) {
      node.refuse(reason);
    }
    throw;
  }
}

std::unique_ptr<PreTokenizer> read_metaspace(const JsonNode& node) {
  using Prepend = Metaspace::Prepend;
  const auto scheme = node.find("prepend_scheme");
  const std::string name = scheme ? scheme->string() : "always";
  if (name != "always" && name != "first" && name != "never") {
    scheme->refuse(fmt::format("\"{}\" is not supported", name));
  }
  Prepend prepend = name == "always"  ? Prepend::kAlways
                    : name == "first" ? Prepend::kFirst
                                      : Prepend::kNever;
  if (!node.boolean("add_prefix_space", true)) {
    prepend = Prepend::kNever;
  }
  return std::make_unique<Metaspace>(
      node.at("replacement").character(), prepend, node.boolean("split", true));
}

std::unique_ptr<PreTokenizer> read_digits(const JsonNode& node) {
  return std::make_unique<SplitByPattern>(
      Pattern("\\p{N}"),
      node.boolean("individual_digits", false) ? Behavior::kIsolated
                                               : Behavior::kContiguous);
}

std::unique_ptr<PreTokenizer> read_punctuation(const JsonNode& node) {
  const auto behavior = node.find("behavior");
  return std::make_unique<SplitByPattern>(
      Pattern("[!-/:-@\\[-`{-~\\p{P}]"),
      behavior ? read_behavior(*behavior) : Behavior::kIsolated);
}

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonNode& node) {
  const std::string type = node.type();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelWords>(
        node.boolean("add_prefix_space", true),
        node.boolean("use_regex", true));
  }
  if (type == "Split") {
    return read_split(node);
  }
  if (type == "Metaspace") {
    return read_metaspace(node);
  }
  if (type == "Digits") {
    return read_digits(node);
  }
  if (type == "Punctuation") {
    return read_punctuation(node);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<SplitByPattern>(Pattern("\\s"), Behavior::kRemoved);
  }
  node.refuse_type();
}

} // namespace

PreTokenizers::PreTokenizers(const std::optional<JsonNode>& node) {
  if (node) {
    add(*node);
  }
}

void PreTokenizers::add(const JsonNode& node) {
  if (node.type() == "Sequence") {
    for (const JsonNode& stage : node.at("pretokenizers").elements()) {
      add(stage);
    }
    return;
  }
  if (is_byte_level_) {
    node.refuse(node.type() + " after ByteLevel is not supported");
  }
  stages_.push_back(read_pre_tokenizer(node));
  is_byte_level_ = node.type() == "ByteLevel";
}

void PreTokenizers::run(
    size_t stage,
    std::string_view text,
    size_t head,
    PieceSink sink) const {
  if (stage == stages_.size()) {
    sink(text, head);
    return;
  }
  stages_[stage]->split(
      text, head, [&](std::string_view piece, size_t piece_head) {
        run(stage + 1, piece, piece_head, sink);
      });
}

void PreTokenizers::split(std::string_view text, size_t head, PieceSink sink)
    const {
  if (!text.empty()) {
    run(0, text, head, sink);
  }
}

} // namespace weft::tokenizers
