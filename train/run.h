#pragma once

#include <optional>

#include "config/recipe.h"
#include "data/batch_loader.h"
#include "mesh/world.h"

namespace weft::train {

/// Trains the model of a recipe up to its last step. Resumes from the newest
/// valid checkpoint of the run's folder, or starts over with `fresh`. Rank 0
/// writes the folder and shows progress. `data` is the data of the recipe, if
/// the caller has opened it.
/// Collective: all ranks of `world`; blocks.
/// Throws: the exceptions of open_run() and Trainer;
/// checkpoint::CheckpointError if there are checkpoints and none is valid, or
/// if the last one cannot be saved.
void run_training(
    const config::Recipe& recipe,
    const mesh::World& world,
    bool fresh,
    std::optional<data::BatchLoader> data = std::nullopt);

} // namespace weft::train
