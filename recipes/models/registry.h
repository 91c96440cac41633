#pragma once

#include <memory>
#include <string_view>

#include "recipes/config/recipe.h"
#include "recipes/models/model.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// The model that a validated recipe describes.
std::shared_ptr<Model> make_model(const Recipe& recipe);

/// How it is cut over the mesh dim "tp".
tp::ParallelizePlan model_plan(const Recipe& recipe);

/// "Llama": what messages call the type "llama".
std::string_view model_title(const Recipe& recipe);

} // namespace weft::recipes
