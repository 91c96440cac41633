#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "config/recipe.h"
#include "train/setup/load_recipe.h"

namespace CLI {
class App;
} // namespace CLI

namespace weft::cli {

/// The command line of a program, and the models linked into it.
class Program : public CLI::App {
 public:
  Program(std::string description, config::KnownModels models)
      : CLI::App(std::move(description)), models_(std::move(models)) {}

  const config::KnownModels& models() const { return models_; }

 private:
  config::KnownModels models_;
};

/// A recipe on the command line: a file and overrides.
struct RecipeArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  config::KnownModels models;

  config::Recipe load() const {
    return train::load_recipe(recipe, overrides, models);
  }
};

/// Makes `arguments`, which must live as long as `command`, its first
/// positional arguments. `examples` shows overrides: "mesh.tp=4".
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
      "Overrides of recipe keys, key.path=value, e.g. " + examples);
}

class Program;

/// Each function adds a subcommand to the program. Its callback runs the
/// command and throws on failure (main.cpp converts exceptions to exit codes).
/// Commands that read recipes need the program's models (program.h).
void add_train(Program& program);
void add_eval(Program& program);
void add_generate(Program& program);
void add_explain(Program& program);
void add_bench(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_report(CLI::App& app);
void add_quorum(CLI::App& app);
void add_quickstart(CLI::App& app);
void add_doctor(CLI::App& app);
void add_tokenize(CLI::App& app);

} // namespace weft::cli
