#pragma once

#include <memory>
#include <string>

#include "cli/program.h"
#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/initial_weights.h"

namespace weft::cli {

/// The arguments of commands that use a model without training it.
struct InferenceArguments : RecipeArguments {
  std::string checkpoint;
  /// "model" or "ema".
  std::string weights = "model";
  bool json = false;

  train::WeightKind weight_kind() const {
    return weights == "ema" ? train::WeightKind::kEma
                            : train::WeightKind::kTrained;
  }
};

/// Adds the options of InferenceArguments to `command`. See
/// add_recipe_arguments().
void add_inference_arguments(
    const Program& program,
    CLI::App& command,
    InferenceArguments& arguments,
    const std::string& examples);

/// Returns the validated recipe; does not wait for other ranks. `reads_data`
/// means that the recipe must specify its data.
config::Recipe load_for_inference(
    const InferenceArguments& arguments,
    bool reads_data);

/// Joins the other ranks. `field` is the name of `value`, which must be
/// identical on all ranks in addition to the recipe.
/// Collective: all ranks; blocks.
/// Throws: mesh::DisagreementError if one of the two differs.
mesh::DeviceMesh join_mesh(
    const config::Recipe& recipe,
    const std::string& field,
    const std::string& value);

/// Throws: mesh::UsageError if stdout cannot be written.
void write_to_stdout(const std::string& text);

} // namespace weft::cli
