#pragma once

#include <string>

#include "recipes/train/train_job.h"

namespace weft::recipes {

/// Fills the job's model from the checkpoint that checkpoint.init_from names;
/// adapters (lora_A, lora_B) that it does not have keep their values. Returns a
/// line for the user.
/// Collective: all ranks of the job's mesh; blocks.
/// Throws: mesh::UsageError at the key if there is no checkpoint, or it has
/// other tensors than the model; checkpoint::CheckpointError if it is damaged.
std::string load_initial_weights(const Recipe& recipe, TrainJob& job);

} // namespace weft::recipes
