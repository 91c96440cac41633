#pragma once

#include <string>

#include <torch/nn/module.h>

#include "config/recipe.h"
#include "mesh/world.h"

namespace weft::train {

/// Compares the versions of Weft and libtorch, the applicable keys of the
/// recipe, and the names and sizes of the data files between ranks. This takes
/// one exchange through the store and precedes all collectives.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::DisagreementError on all ranks if values differ; it has the
/// first rank that differs from rank 0, the key and both values.
void check_runs_agree(
    const config::Recipe& recipe,
    const std::string& data_fingerprint,
    const mesh::World& world);

/// Compares the names, shapes, dtypes and placements of parameters and buffers
/// between ranks, before the model's first collective.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::DisagreementError like check_runs_agree().
void check_models_agree(
    const torch::nn::Module& model,
    const mesh::World& world);

} // namespace weft::train
