#include "inference/prompts.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/read_file.h"
#include "config/schema.h"
#include "mesh/error/error.h"
#include "models/registry.h"
#include "tokenizers/tokenizer_file.h"

namespace weft::inference {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxPromptBytes = 64 << 20;
constexpr const char* kBytes = "byte";
constexpr int64_t kNumBytes = 256;

[[noreturn]] void refuse_prompt(const std::string& message) {
  mesh::throw_error<mesh::UsageError>(message);
}

bool is_rotary(const config::Recipe& recipe) {
  return config::applies(*config::find_key("model.rope_theta"), recipe);
}

std::string read_prompt(const std::string& path) {
  std::error_code fault;
  if (!fs::is_regular_file(path, fault)) {
    refuse_prompt(fmt::format("--prompt-file: {} is not a file", path));
  }
  if (static_cast<int64_t>(fs::file_size(path, fault)) > kMaxPromptBytes) {
    refuse_prompt(fmt::format("--prompt-file: {} is over 64 MiB", path));
  }
  auto text = base::read_file(path);
  if (!text) {
    refuse_prompt(fmt::format("--prompt-file: {} cannot be read", path));
  }
  return std::move(*text);
}

std::vector<int64_t> tokens_of(
    const config::Recipe& recipe,
    const std::string& text,
    const tokenizers::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    refuse_prompt(fmt::format(
        "a text prompt needs a tokenizer, but {}. Give --tokenizer, or "
        "--prompt-tokens.",
        why_no_tokenizer(recipe)));
  }
  auto tokens = tokenizer->encode(text);
  if (tokens.empty() && tokenizer->bos()) {
    tokens.push_back(*tokenizer->bos());
  }
  if (tokens.empty()) {
    refuse_prompt(fmt::format(
        "the prompt is empty, and {} has no BOS token to start from. Give at "
        "least one character.",
        tokenizer->describe()));
  }
  return tokens;
}

void check_known(
    const config::Recipe& recipe,
    const std::vector<int64_t>& tokens) {
  if (tokens.empty()) {
    refuse_prompt("the prompt is empty. Give at least one token.");
  }
  const int64_t known = models::model_outputs(recipe);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= known) {
      refuse_prompt(fmt::format(
          "prompt token {} is {}, but the model's vocabulary has {} tokens",
          i,
          tokens[i],
          known));
    }
  }
}

// Adds the end-of-text tokens of a config, which has one integer or a list.
// Ignores all other values.
void add_end_tokens(const fs::path& path, std::vector<int64_t>& tokens) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return;
  }
  const auto config =
      base::try_parse_json(tokenizers::read_tokenizer_file(path));
  if (!config.is_object() || !config.contains("eos_token_id")) {
    return;
  }
  const auto& given = config.at("eos_token_id");
  for (const auto& each : given.is_array() ? given : nlohmann::json{given}) {
    if (each.is_number_integer()) {
      tokens.push_back(each);
    }
  }
}

std::unique_ptr<tokenizers::Tokenizer> tokenizer_in(const fs::path& folder) {
  std::error_code ignored;
  for (const auto* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name, ignored)) {
      return tokenizers::open_tokenizer(folder / name);
    }
  }
  return nullptr;
}

// Note [Tokenizer choice]
// ~~~~~~~~~~~~~~~~~~~~~~~
// The recipe of a run has every key, so that data.tokenizer: byte may be the
// user's choice or the default.
//  - It is used for a model that was trained on text (data.type: text), which
//    is read as bytes.
//  - A recipe with model.from that sets neither key does not train yet. Its
//    model has the tokens of that folder.
//  - For data.type: tokens, the tokenizer of that folder is used. Without one,
//    bytes are used only if the vocabulary has exactly the bytes. With any
//    other vocabulary the tokenizer is unknown, and bytes would be wrong text
//    that looks like the output of a bad model.
std::unique_ptr<tokenizers::Tokenizer> recipes_tokenizer(
    const config::Recipe& recipe) {
  const auto& name = recipe.data.tokenizer;
  const auto& from = recipe.model.from;
  const auto& written = recipe.origins.places;
  const bool is_trained_on_text =
      recipe.data.type == config::DataType::kText &&
      (from.empty() || written.contains("data.type") ||
       written.contains("data.tokenizer"));
  if (name != kBytes || is_trained_on_text) {
    return tokenizers::open_tokenizer(name);
  }
  auto tokenizer = from.empty() ? nullptr : tokenizer_in(from);
  if (tokenizer == nullptr && models::model_outputs(recipe) == kNumBytes) {
    tokenizer = tokenizers::open_tokenizer(name);
  }
  return tokenizer;
}

} // namespace

std::string why_no_tokenizer(const config::Recipe& recipe) {
  const auto& from = recipe.model.from;
  if (from.empty()) {
    return fmt::format(
        "the recipe sets no tokenizer for its vocabulary of {} tokens "
        "(data.tokenizer: byte is the default, which has 256)",
        models::model_outputs(recipe));
  }
  std::error_code ignored;
  const bool is_there = fs::exists(from, ignored);
  return fmt::format(
      "model.from ({}) {}", from, is_there ? "has none" : "is gone");
}

std::unique_ptr<tokenizers::Tokenizer> find_tokenizer(
    const config::Recipe& recipe,
    const std::optional<std::string>& path) {
  auto tokenizer =
      path ? tokenizers::open_tokenizer(*path) : recipes_tokenizer(recipe);
  const int64_t known = models::model_outputs(recipe);
  if (tokenizer && tokenizer->vocab_size() > known) {
    refuse_prompt(fmt::format(
        "{} has more tokens than the model's vocabulary of {}. Give the "
        "model's tokenizer with --tokenizer.",
        tokenizer->describe(),
        known));
  }
  return tokenizer;
}

std::vector<std::vector<int64_t>> prompt_tokens(
    const config::Recipe& recipe,
    const PromptWords& words,
    const tokenizers::Tokenizer* tokenizer) {
  const int kinds = (words.texts.empty() ? 0 : 1) + (words.file ? 1 : 0) +
                    (words.tokens ? 1 : 0);
  if (kinds != 1) {
    refuse_prompt(fmt::format(
        "{}; give exactly one of --prompt, --prompt-file and --prompt-tokens",
        kinds == 0 ? "no prompt was given" : "several kinds of prompts"));
  }
  std::vector<std::vector<int64_t>> prompts;
  if (words.tokens) {
    prompts.push_back(*words.tokens);
  } else if (words.file) {
    prompts.push_back(tokens_of(recipe, read_prompt(*words.file), tokenizer));
  }
  for (const auto& text : words.texts) {
    prompts.push_back(tokens_of(recipe, text, tokenizer));
  }
  for (const auto& prompt : prompts) {
    check_known(recipe, prompt);
  }
  return prompts;
}

std::vector<int64_t> end_tokens(
    const config::Recipe& recipe,
    const tokenizers::Tokenizer* tokenizer) {
  std::vector<int64_t> tokens;
  if (tokenizer != nullptr && tokenizer->eos()) {
    tokens.push_back(*tokenizer->eos());
  }
  if (!recipe.model.from.empty()) {
    const fs::path folder = recipe.model.from;
    add_end_tokens(folder / "generation_config.json", tokens);
    add_end_tokens(folder / "config.json", tokens);
  }
  return tokens;
}

std::optional<int64_t> longest_sequence(const config::Recipe& recipe) {
  if (is_rotary(recipe)) {
    return std::nullopt;
  }
  return config::applies(
             *config::find_key("model.max_position_embeddings"), recipe)
             ? recipe.model.max_position_embeddings
             : recipe.data.sequence_length;
}

int64_t clamp_new_tokens(
    const config::Recipe& recipe,
    const std::vector<std::vector<int64_t>>& prompts,
    std::optional<int64_t> wanted,
    int64_t fallback) {
  const auto longest = longest_sequence(recipe);
  if (!longest) {
    return wanted.value_or(fallback);
  }
  size_t length = 0;
  for (const auto& prompt : prompts) {
    length = std::max(length, prompt.size());
  }
  const int64_t room = *longest - static_cast<int64_t>(length);
  if (room < 1 || wanted.value_or(1) > room) {
    refuse_prompt(fmt::format(
        "a prompt of {} tokens plus {} new tokens exceeds the model's {} "
        "positions. {}",
        length,
        wanted.value_or(1),
        *longest,
        room < 1 ? "Give a shorter prompt."
                 : fmt::format("--max-new-tokens can be at most {}.", room)));
  }
  return std::min(wanted.value_or(fallback), room);
}

config::Recipe recipe_to_generate(config::Recipe recipe, int64_t length) {
  recipe.tp.sequence_parallel = false;
  if (is_rotary(recipe)) {
    recipe.data.sequence_length = std::max(recipe.data.sequence_length, length);
  }
  return recipe;
}

} // namespace weft::inference
