#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "tokenizers/tokenizer.h"

namespace weft::recipes {

/// What a user asks to be continued: one of the three.
struct PromptWords {
  std::vector<std::string> texts = {};
  std::optional<std::string> file = std::nullopt;
  std::optional<std::vector<int64_t>> tokens = std::nullopt;
};

/// The tokenizer of `path`, or else of the recipe's model: data.tokenizer, or
/// what lies in the folder model.from; see Note [Tokenizer choice]. Null if
/// there is none. Throws: mesh::UsageError if it cannot be read or knows more
/// tokens than the model.
std::unique_ptr<Tokenizer> find_tokenizer(
    const Recipe& recipe,
    const std::optional<std::string>& path);

/// "model.from (llama) is gone"; of a recipe for which find_tokenizer() has
/// found none.
std::string why_no_tokenizer(const Recipe& recipe);

/// The prompts' tokens; an empty text is the tokenizer's begin token.
/// Throws: mesh::UsageError for none or several kinds, a text without a
/// tokenizer, no tokens at all, and tokens that the model does not have.
std::vector<std::vector<int64_t>> prompt_tokens(
    const Recipe& recipe,
    const PromptWords& words,
    const Tokenizer* tokenizer);

/// What ends a sample: the tokenizer's end token, and those of
/// generation_config.json and config.json in the folder model.from.
/// Throws: TokenizerError if one of these is no file that can be read.
std::vector<int64_t> end_tokens(
    const Recipe& recipe,
    const Tokenizer* tokenizer);

/// The longest sequence that the model takes, prompt and continuation; none
/// where rotary positions go on for as long as one likes.
std::optional<int64_t> longest_sequence(const Recipe& recipe);

/// How many tokens follow the longest of `prompts`: `wanted`, or else
/// `fallback`, as far as the model has room.
/// Throws: mesh::UsageError if a prompt is too long, or with what is wanted.
int64_t clamp_new_tokens(
    const Recipe& recipe,
    const std::vector<std::vector<int64_t>>& prompts,
    std::optional<int64_t> wanted,
    int64_t fallback);

/// The recipe of a model that continues `length` tokens in all: its sequences
/// are not cut over ranks, for a token cannot be, and its rotary tables are
/// long enough.
Recipe recipe_to_generate(Recipe recipe, int64_t length);

} // namespace weft::recipes
