#pragma once

#include <string>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/train_job.h"

namespace weft::train {

/// Returns true if model.from or checkpoint.init_from gives the weights of a
/// new run.
bool has_initial_weights(const config::Recipe& recipe);

/// Checks the source of the initial weights as far as one rank can do it alone:
/// that it exists, and that a Hugging Face folder has the tensors of the model.
/// Reads no weights.
/// Throws: like load_model_weights().
void check_initial_weights(const config::Recipe& recipe);

/// The weights to load from a checkpoint: the trained ones, or their EMA
/// (ema.decay) where the checkpoint has one.
enum class WeightKind { kTrained, kEma };

/// Loads the weights of `checkpoint` into a model on `mesh`. `checkpoint` is a
/// step folder or a run's folder, and must be signed if the recipe has a key.
/// Empty loads from checkpoint.init_from according to its rules, or from
/// model.from. Each rank reads only its own shards. Adapters (lora_A, lora_B)
/// that are missing there keep their values. Returns a line for the user.
/// Collective: all ranks of `mesh`; blocks.
/// Throws: mesh::UsageError at the key if the checkpoint or the model folder is
/// missing, if it has other tensors than the model, or if it has no EMA;
/// checkpoint::CheckpointError if it is damaged.
std::string load_model_weights(
    const config::Recipe& recipe,
    models::Model& model,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint = "",
    WeightKind kind = WeightKind::kTrained);

/// Like load_model_weights(), for the model of a job and the source in the
/// recipe.
std::string load_initial_weights(const config::Recipe& recipe, TrainJob& job);

} // namespace weft::train
