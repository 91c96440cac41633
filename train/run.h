#pragma once

#include "config/recipe.h"
#include "mesh/world.h"

namespace weft::train {

/// Trains the model of a recipe up to its last step. Resumes from the newest
/// valid checkpoint of the run's folder, or starts over with `fresh`. Rank 0
/// writes the folder and shows progress.
/// Collective: all ranks of `world`; blocks.
/// Throws: the exceptions of Trainer; mesh::UsageError if the folder cannot be
/// used; checkpoint::CheckpointError if there are checkpoints and none is
/// valid, or if the last one cannot be saved.
void run_training(
    const config::Recipe& recipe,
    const mesh::World& world,
    bool fresh);

} // namespace weft::train
