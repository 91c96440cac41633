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

namespace weft::train {

/// A model on the mesh of a run, ready for its first step.
struct TrainJob {
  mesh::DeviceMesh mesh;
  std::shared_ptr<models::Model> model;
  std::unique_ptr<DataParallelModel> data_parallel;
  /// The DistributedDataParallel in data_parallel, for its buckets, comm hooks
  /// and Join. Null if the model is fully sharded.
  ddp::DistributedDataParallel<models::Model>* ddp = nullptr;
  std::unique_ptr<FusedAdamW> optimizer;
  /// Null if ema.decay is 0.
  std::unique_ptr<EmaWeights> average;
  /// The factor of the loss before backward: the number of replicas if
  /// gradients are averaged over them, otherwise 1.
  double loss_scale = 1;
};

/// Returns the model of a recipe with its adapters, placed over "tp" and to be
/// materialized on `device`.
/// Collective: none, but all ranks of `mesh` must make the same calls.
/// Throws: mesh::UsageError at a key whose value is not possible on that
/// device.
std::shared_ptr<models::Model> place_model(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    c10::Device device);

/// Builds the model deferred, places it over "tp", wraps it over "dp" or shards
/// it over "dp_shard", and initializes each rank's own part of the weights on
/// `device`. Empty means the world's device. Weights on the meta device have no
/// values.
/// Collective: all ranks of `mesh`, which must come from make_job_mesh().
TrainJob make_train_job(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    std::optional<c10::Device> device = std::nullopt);

/// The part of a checkpoint with the state of the comm hook.
constexpr const char* kCommHookPart = "comm_hook";

/// The part of a checkpoint with the EMA.
constexpr const char* kAveragePart = "ema";

bool has_part(const checkpoint::Manifest& manifest, const std::string& part);

/// Returns the tensors of a checkpoint: "model", "optimizer" and, once it has
/// begun, the EMA, which share memory with the job, and a copy of the state of
/// the comm hook.
/// Collective: all ranks, if there is a comm hook.
checkpoint::StateDicts state_dicts(TrainJob& job);

/// Returns tensors for the parts that only some checkpoints of the run have:
/// the state of the comm hook, and the EMA, which then begins.
checkpoint::StateDicts optional_state_dicts(
    TrainJob& job,
    const checkpoint::Manifest& manifest);

/// Applies the state that was loaded into `dicts`, the result of state_dicts().
/// The optimizer's step counts are adopted; learning rate, betas and weight
/// decay stay those of the recipe.
void adopt_state(
    TrainJob& job,
    const checkpoint::StateDicts& dicts,
    const config::Recipe& recipe);

} // namespace weft::train
