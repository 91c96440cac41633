#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "recipes/config/recipe.h"
#include "recipes/models/model.h"
#include "recipes/models/plan_options.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// What recipes call model.type: how a validated recipe becomes a model and
/// its plan. ModelTypes is a list of them.
struct ModelType {
  std::string name;
  /// What messages call it: "Llama".
  std::string title;
  std::function<std::shared_ptr<Model>(const Recipe&)> make;
  std::function<tp::ParallelizePlan(const Recipe&, const PlanOptions&)> plan;
};

/// Throws: mesh::UsageError if one of `models` is incomplete, or has the name
/// of another or of one of Weft's own.
void check_model_types(const ModelTypes& models);

/// The model that a validated recipe describes.
std::shared_ptr<Model> make_model(const Recipe& recipe);

/// How it is cut over the mesh dim "tp".
tp::ParallelizePlan model_plan(const Recipe& recipe);

/// "Llama": what messages call the type "llama".
std::string_view model_title(const Recipe& recipe);

} // namespace weft::recipes
