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

namespace weft::models {

/// The input of a model. The loss is the cross entropy of the logits.
enum class ModelInput { kTokens, kImages };

/// A value of model.type: how a validated recipe becomes a model and its plan.
/// ModelTypes is a list of these.
struct ModelType {
  std::string name;
  /// The name in messages: "Llama".
  std::string title;
  ModelInput input = ModelInput::kTokens;
  /// A function that completes or rejects model.options. Only set for models
  /// that a program links in.
  std::function<void(config::Recipe&)> resolve = nullptr;
  /// A function that returns the number of classes of the logits: the
  /// vocabulary size, or the image classes.
  std::function<int64_t(const config::Recipe&)> outputs = nullptr;
  std::function<std::shared_ptr<Model>(const config::Recipe&)> make = nullptr;
  std::function<tp::ParallelizePlan(const config::Recipe&, const PlanOptions&)>
      plan = nullptr;
};

/// A user-defined model, the argument of model_type().
template <class Config>
struct OwnModel {
  /// The value of model.type. It consists of letters, digits and "_".
  std::string name;
  std::string title;
  ModelInput input = ModelInput::kTokens;
  /// A function that reads the model's config. An option that it does not read
  /// is rejected.
  std::function<Config(config::ModelOptions&)> config = nullptr;
  std::function<int64_t(const Config&)> outputs = nullptr;
  std::function<std::shared_ptr<Model>(const Config&)> make = nullptr;
  std::function<tp::ParallelizePlan(const PlanOptions&, const Config&)> plan =
      nullptr;
};

/// Returns the type of a model that a program links in (cli/main.h).
template <class Config>
ModelType model_type(const OwnModel<Config>& own);

/// Returns the types in the form that recipes use.
config::KnownModels known_models(config::ModelTypes types);

/// Checks the types that a program links in.
/// Throws: mesh::UsageError if one of `models` is incomplete, or if its name is
/// that of another one or of one of Weft's own.
void check_model_types(const config::ModelTypes& models);

/// Fills in defaults of model.options if the type is linked in.
/// Throws: mesh::UsageError at an option if the model does not have it or its
/// value is not possible.
void resolve_options(config::Recipe& recipe);

ModelInput model_input(const config::Recipe& recipe);

/// Returns the number of classes of the model's logits: the vocabulary size, or
/// the image classes.
int64_t model_outputs(const config::Recipe& recipe);

/// Creates the model of a validated recipe.
std::shared_ptr<Model> make_model(const config::Recipe& recipe);

/// Returns the plan that shards the model over the mesh dim "tp".
tp::ParallelizePlan model_plan(const config::Recipe& recipe);

/// Returns the name in messages: "Llama" for the type "llama".
std::string_view model_title(const config::Recipe& recipe);

namespace detail {
/// Reads all options with `read`.
void resolve_with(
    config::Recipe& recipe,
    const std::function<void(config::ModelOptions&)>& read);
} // namespace detail

template <class Config>
ModelType model_type(const OwnModel<Config>& own) {
  const auto config_of = [read = own.config](const config::Recipe& recipe) {
    config::ModelOptions options(recipe);
    return read(options);
  };
  ModelType type{.name = own.name, .title = own.title, .input = own.input};
  if (own.config && own.outputs && own.make && own.plan) {
    type.resolve = [read = own.config](config::Recipe& recipe) {
      detail::resolve_with(
          recipe, [&](config::ModelOptions& options) { read(options); });
    };
    type.outputs = [=, act = own.outputs](const config::Recipe& recipe) {
      return act(config_of(recipe));
    };
    type.make = [=, act = own.make](const config::Recipe& recipe) {
      return act(config_of(recipe));
    };
    type.plan = [=, act = own.plan](
                    const config::Recipe& recipe, const PlanOptions& options) {
      return act(options, config_of(recipe));
    };
  }
  return type;
}

} // namespace weft::models
