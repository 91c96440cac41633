#include <algorithm>
#include <array>
#include <system_error>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "config/schema.h"
#include "hf/config_json.h"
#include "hf/tensor_map.h"
#include "mesh/error/error.h"

namespace weft::hf {
namespace {

constexpr const char* kFromKey = "model.from";

bool is_written(const config::Recipe& recipe, std::string_view key) {
  return recipe.origins.places.contains(key);
}

// Returns true if the recipe sets the key to 0, which leaves the size open.
bool is_left_open(const config::Recipe& recipe, std::string_view key) {
  return (key == "model.kv_heads" || key == "model.max_position_embeddings") &&
         config::value_of(recipe, key) == "0";
}

// Returns true if the recipe contains all sizes of the model. A run adds them
// to its recipe, so that it can resume after the folder was deleted.
bool is_resolved(const config::Recipe& recipe) {
  return std::ranges::all_of(
      std::array{
          "model.type",
          "model.dim",
          "model.layers",
          "model.heads",
          "model.ffn_dim",
          "model.vocab_size"},
      [&](const char* key) { return is_written(recipe, key); });
}

void adopt(
    config::Recipe& recipe,
    const config::Recipe& theirs,
    const HubConfig::KeyMapping& given,
    const std::string& source) {
  const config::Key* key = config::find_key(given.key);
  const auto place = fmt::format("{} ({})", source, given.hub_key);
  const auto value = config::value_of(theirs, given.key);
  if (is_written(recipe, given.key) && !is_left_open(recipe, given.key) &&
      config::value_of(recipe, given.key) != value) {
    config::refuse(
        recipe,
        given.key,
        fmt::format(
            "got {}, but {} has {}. The model's configuration comes from "
            "model.from ({}). Remove this key",
            config::value_of(recipe, given.key),
            place,
            value,
            config::place_of(recipe, kFromKey)));
  }
  config::copy_value(*key, theirs, recipe);
  if (!is_written(recipe, given.key)) {
    recipe.origins.places.insert_or_assign(given.key, place);
  }
}

} // namespace

std::string portable_path(const std::filesystem::path& folder) {
  std::error_code error;
  const auto absolute =
      std::filesystem::absolute(folder, error).lexically_normal().string();
  return error || !checkpoint::is_utf8(absolute) ? folder.string() : absolute;
}

void check_values(const HubConfig& config, const std::string& source) {
  config::Recipe recipe;
  recipe.model = config.model;
  for (const auto& given : config.given) {
    config::Key key = *config::find_key(given.key);
    // In a recipe, 0 leaves the size open. In a config.json, 0 is a size.
    key.range.special.reset();
    if (const auto fault = config::find_value_error(key, recipe);
        !fault.empty()) {
      mesh::throw_error<mesh::UsageError>(
          fmt::format("{}: {}: {}", source, given.hub_key, fault));
    }
  }
  check_tensor_count(config.model, source);
}

void adopt_config(config::Recipe& recipe) {
  const std::filesystem::path folder = recipe.model.from;
  if (folder.empty()) {
    return;
  }
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored) && is_resolved(recipe)) {
    return; // an error when the weights are needed
  }
  HubConfig config;
  try {
    config = read_config(folder);
  } catch (const mesh::UsageError& error) {
    config::refuse(recipe, kFromKey, error.what_without_backtrace());
  }
  config::Recipe theirs;
  theirs.model = config.model;
  for (const auto& given : config.given) {
    adopt(recipe, theirs, given, (folder / kConfigName).string());
  }
}

} // namespace weft::hf
