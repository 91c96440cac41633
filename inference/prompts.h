#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "tokenizers/tokenizer.h"

namespace weft::inference {

/// The prompts of a user, in one of three forms.
struct PromptWords {
  std::vector<std::string> texts = {};
  std::optional<std::string> file = std::nullopt;
  std::optional<std::vector<int64_t>> tokens = std::nullopt;
};

/// Returns the tokenizer at `path`. Without a path it is the tokenizer of the
/// recipe's model: data.tokenizer, or else the one in the folder model.from.
/// Null if there is none. See Note [Tokenizer choice].
/// Throws: mesh::UsageError if it cannot be read or has more tokens than the
/// model.
std::unique_ptr<tokenizers::Tokenizer> find_tokenizer(
    const config::Recipe& recipe,
    const std::optional<std::string>& path);

/// Returns the reason why find_tokenizer() returned null: "model.from (llama)
/// is gone".
std::string why_no_tokenizer(const config::Recipe& recipe);

/// Returns the tokens of the prompts. An empty string is the tokenizer's begin
/// token.
/// Throws: mesh::UsageError for none or several forms, a string without a
/// tokenizer, an empty list of tokens, and tokens that the model does not have.
std::vector<std::vector<int64_t>> prompt_tokens(
    const config::Recipe& recipe,
    const PromptWords& words,
    const tokenizers::Tokenizer* tokenizer);

/// Returns the tokens that end a sample: the tokenizer's end token, and those
/// of generation_config.json and config.json in the folder model.from.
/// Throws: TokenizerError if one of these files cannot be read.
std::vector<int64_t> end_tokens(
    const config::Recipe& recipe,
    const tokenizers::Tokenizer* tokenizer);

/// Returns the maximum length of prompt and continuation. Empty if rotary
/// positions have no limit.
std::optional<int64_t> longest_sequence(const config::Recipe& recipe);

/// Returns how many tokens follow the longest of `prompts`: `wanted`, or else
/// `fallback`, limited by the model's maximum length.
/// Throws: mesh::UsageError if a prompt alone or with `wanted` tokens is too
/// long.
int64_t clamp_new_tokens(
    const config::Recipe& recipe,
    const std::vector<std::vector<int64_t>>& prompts,
    std::optional<int64_t> wanted,
    int64_t fallback);

/// Returns the recipe of a model for sequences of `length` tokens: without
/// sequence parallelism, because a single token cannot be sharded, and with
/// rotary tables of that length.
config::Recipe recipe_to_generate(config::Recipe recipe, int64_t length);

} // namespace weft::inference
