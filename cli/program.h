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

class Program;

/// Each adds a subcommand to the program; its callback runs the command and
/// throws on failure (main.cpp turns what is thrown into an exit code). Those
/// that read recipes need to know the program's models (program.h).
void add_train(Program& program);
void add_eval(Program& program);
void add_generate(Program& program);
void add_explain(Program& program);
void add_bench(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_report(CLI::App& app);
void add_doctor(CLI::App& app);
void add_tokenize(CLI::App& app);

} // namespace weft::recipes::cli
