#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "config/recipe.h"
#include "train/setup/load_recipe.h"

namespace weft::recipes::cli {

/// The command line of a program, and the models that are linked into it.
class Program : public CLI::App {
 public:
  Program(std::string description, KnownModels models)
      : CLI::App(std::move(description)), models_(std::move(models)) {}

  const KnownModels& models() const { return models_; }

 private:
  KnownModels models_;
};

/// A recipe as commands take it: a file, and what overrides it.
struct RecipeArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  KnownModels models;

  Recipe load() const { return load_recipe(recipe, overrides, models); }
};

/// Makes `arguments`, which live as long as `command`, its first positionals.
/// `examples` of overrides: "mesh.tp=4".
inline void add_recipe_arguments(
    const Program& program,
    CLI::App& command,
    RecipeArguments& arguments,
    const std::string& examples) {
  arguments.models = program.models();
  command.add_option("recipe", arguments.recipe, "The recipe, a YAML file")
      ->required();
  command.add_option(
      "overrides",
      arguments.overrides,
      "key.path=value, on top of the recipe, e.g. " + examples);
}

} // namespace weft::recipes::cli
