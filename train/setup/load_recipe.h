#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config/recipe.h"

namespace weft::train {

/// Reads a recipe file like read_recipe(), adds the values of the transformers
/// folder in model.from, and calls complete().
/// Throws: mesh::UsageError "FILE:LINE:COLUMN: KEY: <error>" if the recipe is
/// invalid.
config::Recipe load_recipe(
    const std::string& path,
    std::span<const std::string> overrides = {},
    config::KnownModels models = {});

/// Reads recipe.yaml of a run's folder like parse_stored_recipe().
config::Recipe load_stored_recipe(
    const std::string& path,
    config::KnownModels models = {});

/// Like load_recipe(), for a text. `source` is the file name in messages.
config::Recipe parse_recipe(
    std::string_view text,
    const std::string& source,
    std::span<const std::string> overrides = {},
    config::KnownModels models = {});

} // namespace weft::train
