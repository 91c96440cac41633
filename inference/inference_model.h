#pragma once

#include <functional>
#include <memory>
#include <string>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/initial_weights.h"

namespace weft::recipes {

/// Validates a recipe of which no step is trained: its batch need not divide
/// among the replicas. Sets micro_batch_size, the samples that a replica takes
/// at once, where the recipe does not.
/// Throws: as validate().
void validate_for_inference(Recipe& recipe, int64_t world_size);

/// Looks, without communication, for the weights that load_weights() would
/// take, and whether the run that left them had the recipe's model.
/// Throws: mesh::UsageError if there are none, of that kind, or at the keys
/// that differ.
void check_weights(
    const Recipe& recipe,
    const std::string& checkpoint,
    WeightKind kind = WeightKind::kTrained);

/// The mesh of a validated recipe.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::DisagreementError if ranks have different recipes.
mesh::DeviceMesh make_inference_mesh(
    const Recipe& recipe,
    const mesh::World& world);

/// A line for the user; called on rank 0 only.
using LogLine = std::function<void(const std::string&)>;

/// The model of a recipe with its weights, over the "tp" of `mesh` and the same
/// on all of "dp", in the dtype that training computes in: no gradients, no
/// optimizer, no dropout. Weights are those of `checkpoint` (a step folder, a
/// folder of them, or a run's: the newest that is sound); if that is empty,
/// those that the recipe's run would go on from, or else begin with.
/// Collective: all ranks of `mesh`; blocks.
/// Throws: mesh::UsageError if there are none, or they are of another model;
/// checkpoint::CheckpointError if they are damaged.
std::shared_ptr<Model> load_model(
    const Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint,
    const LogLine& log_line,
    WeightKind kind = WeightKind::kTrained);

} // namespace weft::recipes
