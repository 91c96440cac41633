#include "train/setup/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/schema.h"
#include "data/digit_images.h"
#include "data/text_corpus.h"
#include "models/registry.h"

namespace weft::train {
namespace {

std::string join_with_or(std::vector<std::string> choices) {
  const std::string last = choices.back();
  choices.pop_back();
  return choices.empty()
             ? last
             : fmt::format("{} or {}", fmt::join(choices, ", "), last);
}

// Returns true if each rank gets equally many kv heads, or an equal part of the
// queries of one kv head.
bool kv_heads_fit(int64_t kv_heads, int64_t tp) {
  return kv_heads % tp == 0 || tp % kv_heads == 0;
}

std::string tp_choices(int64_t heads, int64_t kv_heads) {
  std::vector<std::string> choices;
  for (int64_t tp = 1; tp <= heads && choices.size() < 12; ++tp) {
    if (heads % tp == 0 && kv_heads_fit(kv_heads, tp)) {
      choices.push_back(std::to_string(tp));
    }
  }
  return join_with_or(std::move(choices));
}

bool has_key(const config::Recipe& recipe, std::string_view key) {
  return config::applies(*config::find_key(key), recipe);
}

void check_head_size(const config::Recipe& recipe) {
  const config::ModelConfig& model = recipe.model;
  if (model.dim % model.heads != 0) {
    config::refuse(
        recipe,
        "model.dim",
        fmt::format(
            "{} is not divisible by model.heads={}", model.dim, model.heads));
  }
  if (model.dim / model.heads % 2 != 0 && has_key(recipe, "model.rope_theta")) {
    config::refuse(
        recipe,
        "model.dim",
        fmt::format(
            "{} / model.heads={} is {}, but rotary embeddings need an even "
            "head size",
            model.dim,
            model.heads,
            model.dim / model.heads));
  }
}

void check_heads_over_tp(const config::Recipe& recipe, int64_t kv_heads) {
  const int64_t heads = recipe.model.heads;
  const int64_t tp = recipe.mesh.tp;
  const bool even = heads % tp == 0;
  if (even && kv_heads_fit(kv_heads, tp)) {
    return;
  }
  const auto fault =
      even ? fmt::format(
                 "{} neither divides mesh.tp={} nor is a multiple of it",
                 kv_heads,
                 tp)
           : fmt::format("{} is not divisible by mesh.tp={}", heads, tp);
  config::refuse(
      recipe,
      even ? "model.kv_heads" : "model.heads",
      fmt::format(
          "{}; with {} heads{} mesh.tp can be {}",
          fault,
          heads,
          has_key(recipe, "model.kv_heads")
              ? fmt::format(" and {} kv heads", kv_heads)
              : "",
          tp_choices(heads, kv_heads)));
}

void resolve_heads(config::Recipe& recipe) {
  config::ModelConfig& model = recipe.model;
  const int64_t kv_heads = model.kv_heads == 0 ? model.heads : model.kv_heads;
  check_head_size(recipe);
  if (model.heads % kv_heads != 0) {
    config::refuse(
        recipe,
        "model.kv_heads",
        fmt::format(
            "model.heads={} is not divisible by {}", model.heads, kv_heads));
  }
  check_heads_over_tp(recipe, kv_heads);
  if (has_key(recipe, "model.kv_heads")) {
    model.kv_heads = kv_heads;
  }
}

void check_rope_scaling(const config::Recipe& recipe) {
  const auto& scaling = recipe.model.rope_scaling;
  if (scaling.rope_type == config::RopeType::kLlama3 &&
      scaling.high_freq_factor <= scaling.low_freq_factor) {
    config::refuse(
        recipe,
        "model.rope_scaling.high_freq_factor",
        fmt::format(
            "{} is not greater than model.rope_scaling.low_freq_factor={}",
            scaling.high_freq_factor,
            scaling.low_freq_factor));
  }
}

void resolve_positions(config::Recipe& recipe) {
  int64_t& positions = recipe.model.max_position_embeddings;
  if (positions == 0) {
    positions = recipe.data.sequence_length;
  }
  if (positions < recipe.data.sequence_length) {
    config::refuse(
        recipe,
        "model.max_position_embeddings",
        fmt::format(
            "{} is smaller than data.sequence_length={}",
            positions,
            recipe.data.sequence_length));
  }
}

void check_experts(const config::Recipe& recipe) {
  const config::ModelConfig& model = recipe.model;
  if (model.num_experts_per_tok > model.num_experts) {
    config::refuse(
        recipe,
        "model.num_experts_per_tok",
        fmt::format(
            "{} is more than model.num_experts={}",
            model.num_experts_per_tok,
            model.num_experts));
  }
}

std::string divisors_of(int64_t value) {
  std::vector<std::string> divisors;
  for (int64_t d = 1; d <= value; ++d) {
    if (value % d == 0) {
      divisors.push_back(std::to_string(d));
    }
  }
  return join_with_or(std::move(divisors));
}

void check_patches(const config::Recipe& recipe) {
  const config::ModelConfig& model = recipe.model;
  if (model.image_size % model.patch_size != 0) {
    config::refuse(
        recipe,
        "model.patch_size",
        fmt::format(
            "model.image_size={} is not divisible by {}; the patch size can be "
            "{}",
            model.image_size,
            model.patch_size,
            divisors_of(model.image_size)));
  }
}

// Returns the key for messages. Models that are linked in have model.options
// instead of `key`.
std::string_view own_key(const config::Recipe& recipe, std::string_view key) {
  return has_key(recipe, key) ? key : "model.options";
}

void check_digits(const config::Recipe& recipe) {
  const config::ModelConfig& model = recipe.model;
  const auto check = [&](std::string_view key, int64_t value, int64_t digits) {
    if (value != digits) {
      config::refuse(
          recipe,
          key,
          fmt::format(
              "got {}, but data.type=digits requires {}", value, digits));
    }
  };
  check("model.image_size", model.image_size, data::DigitImages::kSize);
  check("model.channels", model.channels, data::DigitImages::kChannels);
  const int64_t classes = models::model_outputs(recipe);
  if (classes < data::DigitImages::kClasses) {
    config::refuse(
        recipe,
        own_key(recipe, "model.num_classes"),
        fmt::format(
            "{} is smaller than the number of digits, {}",
            classes,
            data::DigitImages::kClasses));
  }
}

void check_vocabulary(const config::Recipe& recipe) {
  const int64_t tokens = models::model_outputs(recipe);
  if (recipe.data.type == config::DataType::kText &&
      recipe.data.tokenizer == "byte" &&
      tokens < data::TextCorpus::kVocabSize) {
    config::refuse(
        recipe,
        own_key(recipe, "model.vocab_size"),
        fmt::format(
            "{} is smaller than the vocabulary of data.tokenizer=byte, {}",
            tokens,
            data::TextCorpus::kVocabSize));
  }
}

void check_data(const config::Recipe& recipe) {
  const bool reads_text =
      models::model_input(recipe) == models::ModelInput::kTokens;
  if (reads_text != (recipe.data.type != config::DataType::kDigits)) {
    config::refuse(
        recipe,
        "data.type",
        fmt::format(
            "model.type={} is a model for {}: it needs data.type={}, not {}",
            recipe.model.type,
            reads_text ? "language" : "images",
            reads_text ? "text or tokens" : "digits",
            recipe.data.type));
  }
  reads_text ? check_vocabulary(recipe) : check_digits(recipe);
}

} // namespace

void resolve_model(config::Recipe& recipe) {
  models::resolve_options(recipe);
  check_data(recipe);
  if (has_key(recipe, "model.heads")) {
    resolve_heads(recipe);
  }
  if (has_key(recipe, "model.rope_scaling.rope_type")) {
    check_rope_scaling(recipe);
  }
  if (has_key(recipe, "model.max_position_embeddings")) {
    resolve_positions(recipe);
  }
  if (has_key(recipe, "model.num_experts")) {
    check_experts(recipe);
  }
  if (has_key(recipe, "model.patch_size")) {
    check_patches(recipe);
  }
}

} // namespace weft::train
