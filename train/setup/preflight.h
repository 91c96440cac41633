#pragma once

#include <string>

#include <torch/nn/module.h>

#include "config/recipe.h"
#include "mesh/world.h"

namespace weft::recipes {

/// Compares, in one round through the store and before ranks do anything
/// together, the program's and libtorch's versions, each key of the recipe and
/// the data's names and sizes.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::DisagreementError on all ranks, naming the first rank that
/// differs from rank 0, the key, and both values.
void check_runs_agree(
    const Recipe& recipe,
    const std::string& data_fingerprint,
    const mesh::World& world);

/// The same for names, shapes, dtypes and placements of parameters and buffers,
/// before the model's first collective.
/// Collective and Throws: as above.
void check_models_agree(
    const torch::nn::Module& model,
    const mesh::World& world);

} // namespace weft::recipes
