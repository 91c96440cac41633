#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"

namespace weft::hf {

inline constexpr const char* kConfigName = "config.json";
inline constexpr int64_t kMaxConfigBytes = 1 << 20;

/// A model as described by config.json.
struct HubConfig {
  config::ModelConfig model;
  struct KeyMapping {
    /// The recipe key: "model.dim".
    std::string key;
    /// The key of config.json: "hidden_size".
    std::string hub_key;
  };
  /// The recipe keys that it sets, `type` first.
  std::vector<KeyMapping> given;
};

/// Reads the config.json of a Llama (2 and 3), a GPT-2 or a Mixtral.
/// Throws: mesh::UsageError naming the file and the key for an unknown
/// model_type, an unsupported feature, or a number that is missing or out of
/// range.
HubConfig read_config(const std::filesystem::path& folder);

/// Like read_config(), for text; `source` is the file name in messages.
HubConfig parse_config(std::string_view text, const std::string& source);

/// Returns how a checkpoint stores the folder of a model, for readers in
/// another working directory: absolute, or unchanged if that is not UTF-8.
std::string portable_path(const std::filesystem::path& folder);

/// Throws: mesh::UsageError naming `source` and the key, if a value is not
/// allowed in a recipe or the model has more tensors than a checkpoint can
/// have.
void check_values(const HubConfig& config, const std::string& source);

/// Returns true if models of that model.type can be exported to Hugging Face
/// format.
bool has_hub_form(std::string_view model_type);

/// Returns the config.json of a model trained on sequences of
/// `sequence_length`, with weights of `dtype` ("bfloat16"). `base` is the
/// original config.json of the model, or empty; lengths and special tokens are
/// taken from it.
std::string write_config(
    const config::ModelConfig& model,
    int64_t sequence_length,
    std::string_view dtype,
    std::string_view base);

/// Sets recipe.model from the config.json in model.from. A missing folder is
/// not an error if the recipe has all its values.
/// Throws: mesh::UsageError like read_config(), or if the recipe has another
/// value, naming both places.
void adopt_config(config::Recipe& recipe);

} // namespace weft::hf
