#pragma once

#include "config/recipe.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::train {

/// Applies activation checkpointing to the modules that
/// train.activation_checkpoint selects: all blocks (elements of module lists),
/// or those whose names match.
/// Throws: mesh::UsageError if a name matches no module or a single op, or if
/// the model has no blocks.
void recompute_activations(
    const config::Recipe& recipe,
    torch::nn::Module& model);

} // namespace weft::train
