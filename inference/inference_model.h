#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/initial_weights.h"

namespace weft::inference {

/// Validates a recipe that is not trained: its batch size need not be divisible
/// by the number of replicas. Sets micro_batch_size, the number of samples that
/// a replica takes at once, if the recipe does not. A recipe that shards the
/// model over mesh.dp_shard keeps that size if it divides the number of ranks
/// that mesh.tp leaves; otherwise it shards over all of them.
/// Throws: like validate().
void validate_for_inference(config::Recipe& recipe, int64_t world_size);

/// Checks, without communication, that the weights for load_weights() exist and
/// that their run had the recipe's model.
/// Throws: mesh::UsageError if there are none of that kind, or at the keys that
/// differ.
void check_weights(
    const config::Recipe& recipe,
    const std::string& checkpoint,
    train::WeightKind kind = train::WeightKind::kTrained);

/// Creates the mesh of a validated recipe.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::DisagreementError if ranks have different recipes.
mesh::DeviceMesh make_inference_mesh(
    const config::Recipe& recipe,
    const mesh::World& world);

/// Creates the model of a recipe with its weights, sharded over "tp" and
/// "dp_shard" of `mesh` and replicated over "dp", in the dtype in which
/// training computes, without gradients, optimizer and dropout. The weights are
/// those of `checkpoint` (a step folder, a folder of them, or a run's folder:
/// its newest valid checkpoint); if that is empty, those from which the
/// recipe's run would resume or start. If "dp_shard" shards it, all ranks must
/// call the model together: it gathers parameters.
/// Collective: all ranks of `mesh`; blocks.
/// Throws: mesh::UsageError if there are none or they belong to another model;
/// checkpoint::CheckpointError if they are damaged.
std::shared_ptr<models::Model> load_model(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint,
    const base::Logger& log,
    train::WeightKind kind = train::WeightKind::kTrained);

} // namespace weft::inference
