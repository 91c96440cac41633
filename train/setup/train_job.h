#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/save/save.h"
#include "config/recipe.h"
#include "ddp/distributed_data_parallel.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/adamw.h"
#include "train/setup/data_parallel_model.h"
#include "train/setup/ema_weights.h"

namespace weft::recipes {

/// A model on the mesh of a run, ready for its first step.
struct TrainJob {
  mesh::DeviceMesh mesh;
  std::shared_ptr<Model> model;
  std::unique_ptr<DataParallelModel> data_parallel;
  /// data_parallel, for what DistributedDataParallel alone has: buckets, comm
  /// hooks, Join. Null if the model is fully sharded.
  ddp::DistributedDataParallel<Model>* ddp = nullptr;
  std::unique_ptr<FusedAdamW> optimizer;
  /// None with ema.decay = 0.
  std::unique_ptr<EmaWeights> average;
  /// What a loss is multiplied by for backward: replicas where gradients are
  /// means over them.
  double loss_scale = 1;
};

/// The model of a recipe, placed over "tp" and with its adapters, to be
/// materialized on `device`.
/// Collective: none, but all ranks of `mesh` do the same.
/// Throws: mesh::UsageError at a key that cannot be, on that device.
std::shared_ptr<Model> place_model(
    const Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    c10::Device device);

/// Builds the model deferred, places it over "tp", wraps it over "dp" or
/// divides it over "dp_shard", and gives every rank its own part of the
/// weights, on `device` (default: the world's; on the meta device they have no
/// values).
/// Collective: all ranks of `mesh`, from make_job_mesh().
TrainJob make_train_job(
    const Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    std::optional<c10::Device> device = std::nullopt);

/// The part of a checkpoint that holds what the comm hook keeps.
constexpr const char* kCommHookPart = "comm_hook";

/// The part that holds the average of the weights.
constexpr const char* kAveragePart = "ema";

bool has_part(const checkpoint::Manifest& manifest, const std::string& part);

/// What a checkpoint of the job holds: "model", "optimizer" and the average of
/// the weights once it has begun, which share memory with the job, and a copy
/// of what the comm hook keeps.
/// Collective: all ranks, where there is a comm hook.
checkpoint::StateDicts state_dicts(TrainJob& job);

/// Tensors for what not every checkpoint of the run has: the comm hook's state,
/// and the average of the weights, which then begins.
checkpoint::StateDicts optional_state_dicts(
    TrainJob& job,
    const checkpoint::Manifest& manifest);

/// After `dicts`, from state_dicts(), were loaded into: steps of the optimizer
/// are taken over; learning rate, betas and decay stay the recipe's.
void adopt_state(
    TrainJob& job,
    const checkpoint::StateDicts& dicts,
    const Recipe& recipe);

} // namespace weft::recipes
