#pragma once

#include "config/recipe.h"
#include "mesh/world.h"

namespace weft::recipes {

/// Trains what a recipe describes: from the newest sound checkpoint of its
/// folder, or with `fresh` from the start, to its last step. Rank 0 writes the
/// folder and shows progress.
/// Collective: all ranks of `world`; blocks.
/// Throws: what Trainer throws; mesh::UsageError if the folder cannot be used;
/// checkpoint::CheckpointError if there are checkpoints and none is sound, or
/// the last one cannot be saved.
void run_training(const Recipe& recipe, const mesh::World& world, bool fresh);

} // namespace weft::recipes
