#pragma once

#include <span>
#include <string>
#include <string_view>

#include "config/recipe.h"

namespace weft::recipes {

/// Reads a recipe from its file, as read_recipe() does, takes what model.from
/// names from the transformers folder there, and makes it complete().
/// Throws: mesh::UsageError: "FILE:LINE:COLUMN: KEY: what is wrong".
Recipe load_recipe(
    const std::string& path,
    std::span<const std::string> overrides = {},
    KnownModels models = {});

/// Reads recipe.yaml of a run's folder, as parse_stored_recipe() does.
Recipe load_stored_recipe(const std::string& path, KnownModels models = {});

/// The same as load_recipe() for a text; `source` stands for the file in
/// messages.
Recipe parse_recipe(
    std::string_view text,
    const std::string& source,
    std::span<const std::string> overrides = {},
    KnownModels models = {});

} // namespace weft::recipes
