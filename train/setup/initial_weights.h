#pragma once

#include <string>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/train_job.h"

namespace weft::recipes {

/// Whether the recipe says where a new run's weights come from: model.from or
/// checkpoint.init_from.
bool has_initial_weights(const Recipe& recipe);

/// Looks at that place as far as one rank can alone: that it is there, and that
/// the tensors of a Hugging Face folder are those of the model. Reads no
/// weights.
/// Throws: as load_model_weights().
void check_initial_weights(const Recipe& recipe);

/// Which of a checkpoint's weights: as they were trained, or averaged over the
/// steps (ema.decay), where an average is kept.
enum class WeightKind { kTrained, kEma };

/// Fills a model that lies on `mesh` with the weights of `checkpoint`, a step
/// folder or a run's, signed if the recipe has a key; if it is empty, with
/// those of checkpoint.init_from, read as its rules say, or model.from. Each
/// rank reads its own part alone. Adapters (lora_A, lora_B) that are not there
/// keep their values. Returns a line for the user.
/// Collective: all ranks of `mesh`; blocks.
/// Throws: mesh::UsageError at the key if there is no checkpoint or model, it
/// has other tensors than the model, or no average; checkpoint::CheckpointError
/// if it is damaged.
std::string load_model_weights(
    const Recipe& recipe,
    Model& model,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint = "",
    WeightKind kind = WeightKind::kTrained);

/// The same for the model of a job, from where the recipe says.
std::string load_initial_weights(const Recipe& recipe, TrainJob& job);

} // namespace weft::recipes
