#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace weft::recipes::hub {

inline constexpr const char* kConfigName = "config.json";
inline constexpr int64_t kMaxConfigBytes = 1 << 20;

/// What a folder's config.json says of a model.
struct HubConfig {
  ModelConfig model;
  struct KeyMapping {
    /// Of the recipe: "model.dim".
    std::string key;
    /// Of config.json: "hidden_size".
    std::string hub_key;
  };
  /// The keys that it settles, `type` first.
  std::vector<KeyMapping> given;
};

/// Reads config.json of a Llama (2 and 3), a GPT-2 or a Mixtral.
/// Throws: mesh::UsageError naming the file and the key if it is no model of
/// ours: an unknown model_type, a feature that is not supported, a number that
/// is missing or out of its range.
HubConfig read_config(const std::filesystem::path& folder);

/// The same for its text; `source` stands for the file in messages.
HubConfig parse_config(std::string_view text, const std::string& source);

/// How a checkpoint names a folder that a model came from, for whoever reads it
/// in another working directory: absolute, or as it is where that would not be
/// UTF-8.
std::string portable_path(const std::filesystem::path& folder);

/// Throws: mesh::UsageError naming `source` and the key if a value is none that
/// a recipe could have, or the model has more tensors than a checkpoint.
void check_values(const HubConfig& config, const std::string& source);

/// Whether models of that model.type have a Hugging Face form.
bool has_hub_form(std::string_view model_type);

/// The config.json of a model that was trained on sequences of
/// `sequence_length`, with weights of `dtype` ("bfloat16"). `base`: the
/// config.json that the model came with, or empty: lengths and special tokens
/// are taken from it.
std::string write_config(
    const ModelConfig& model,
    int64_t sequence_length,
    std::string_view dtype,
    std::string_view base);

/// model.from: fills recipe.model from the folder's config.json. A folder that
/// is gone is no fault where the recipe has all that it said.
/// Throws: mesh::UsageError as read_config(), or if the recipe says otherwise,
/// naming both places.
void adopt_config(Recipe& recipe);

} // namespace weft::recipes::hub
