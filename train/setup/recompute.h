#pragma once

#include "config/recipe.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::recipes {

/// Has the modules that train.activation_checkpoint names recompute their
/// activations in backward: all blocks (elements of module lists), or those
/// whose names match.
/// Throws: mesh::UsageError where a name matches no module.
void recompute_activations(const Recipe& recipe, torch::nn::Module& model);

} // namespace weft::recipes
