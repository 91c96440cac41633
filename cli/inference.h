#pragma once

#include <memory>
#include <string>

#include "cli/program.h"
#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/initial_weights.h"

namespace weft::recipes::cli {

/// What commands that ask a model and do not train it have in common.
struct InferenceArguments : RecipeArguments {
  std::string checkpoint;
  /// "model" or "ema".
  std::string weights = "model";
  bool json = false;

  WeightKind weight_kind() const {
    return weights == "ema" ? WeightKind::kEma : WeightKind::kTrained;
  }
};

/// Makes them the command's arguments; see add_recipe_arguments().
void add_inference_arguments(
    const Program& program,
    CLI::App& command,
    InferenceArguments& arguments,
    const std::string& examples);

/// The recipe, validated; no rank waits for another. `reads_data`: of the
/// recipe's data, which it else need not name.
Recipe load_for_inference(const InferenceArguments& arguments, bool reads_data);

/// Joins the other ranks. `field` names what has to be the same on all besides
/// the recipe, `value`.
/// Collective: all ranks; blocks.
/// Throws: mesh::DisagreementError if one of the two differs.
mesh::DeviceMesh join_mesh(
    const Recipe& recipe,
    const std::string& field,
    const std::string& value);

/// On stderr: stdout is for results.
void log_to_stderr(const std::string& line);

/// Throws: mesh::UsageError if stdout does not take it.
void write_to_stdout(const std::string& text);

} // namespace weft::recipes::cli
