#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_options.h"
#include "config/recipe.h"
#include "models/model.h"
#include "models/plans.h"
#include "tp/parallelize_module.h"

namespace weft::recipes {

/// What a model reads; the loss is the cross entropy of its logits.
enum class ModelInput { kTokens, kImages };

/// What recipes call model.type: how a validated recipe becomes a model and
/// its plan. ModelTypes is a list of them.
struct ModelType {
  std::string name;
  /// What messages call it: "Llama".
  std::string title;
  ModelInput input = ModelInput::kTokens;
  /// Of those that are linked in: makes model.options complete, or refuses it.
  std::function<void(Recipe&)> resolve = nullptr;
  /// What the logits tell apart: tokens, or classes.
  std::function<int64_t(const Recipe&)> outputs = nullptr;
  std::function<std::shared_ptr<Model>(const Recipe&)> make = nullptr;
  std::function<tp::ParallelizePlan(const Recipe&, const PlanOptions&)> plan =
      nullptr;
};

/// A model of one's own, as model_type() takes it.
template <class Config>
struct OwnModel {
  /// Of letters, digits and "_".
  std::string name;
  std::string title;
  ModelInput input = ModelInput::kTokens;
  /// What the model is made from. An option that it does not ask for is
  /// refused.
  std::function<Config(ModelOptions&)> config = nullptr;
  std::function<int64_t(const Config&)> outputs = nullptr;
  std::function<std::shared_ptr<Model>(const Config&)> make = nullptr;
  std::function<tp::ParallelizePlan(const PlanOptions&, const Config&)> plan =
      nullptr;
};

/// The type of a model that a program links in (cli/main.h).
template <class Config>
ModelType model_type(const OwnModel<Config>& own);

/// The types as recipes know them.
KnownModels known_models(ModelTypes types);

/// Throws: mesh::UsageError if one of `models` is incomplete, or has the name
/// of another or of one of Weft's own.
void check_model_types(const ModelTypes& models);

/// Fills in what model.options leaves out, where the type is linked in.
/// Throws: mesh::UsageError at an option that the model does not have, or
/// that cannot be.
void resolve_options(Recipe& recipe);

ModelInput model_input(const Recipe& recipe);

/// What the logits of the model tell apart: tokens, or classes.
int64_t model_outputs(const Recipe& recipe);

/// The model that a validated recipe describes.
std::shared_ptr<Model> make_model(const Recipe& recipe);

/// How it is cut over the mesh dim "tp".
tp::ParallelizePlan model_plan(const Recipe& recipe);

/// "Llama": what messages call the type "llama".
std::string_view model_title(const Recipe& recipe);

namespace detail {
/// Reads all options with `read`.
void resolve_with(
    Recipe& recipe,
    const std::function<void(ModelOptions&)>& read);
} // namespace detail

template <class Config>
ModelType model_type(const OwnModel<Config>& own) {
  const auto config_of = [read = own.config](const Recipe& recipe) {
    ModelOptions options(recipe);
    return read(options);
  };
  ModelType type{.name = own.name, .title = own.title, .input = own.input};
  if (own.config && own.outputs && own.make && own.plan) {
    type.resolve = [read = own.config](Recipe& recipe) {
      detail::resolve_with(
          recipe, [&](ModelOptions& options) { read(options); });
    };
    type.outputs = [=, act = own.outputs](const Recipe& recipe) {
      return act(config_of(recipe));
    };
    type.make = [=, act = own.make](const Recipe& recipe) {
      return act(config_of(recipe));
    };
    type.plan = [=, act = own.plan](
                    const Recipe& recipe, const PlanOptions& options) {
      return act(options, config_of(recipe));
    };
  }
  return type;
}

} // namespace weft::recipes
