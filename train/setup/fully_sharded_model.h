#pragma once

#include <memory>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/data_parallel_model.h"

namespace weft::train {

/// Shards a placed model, which has no values yet, over "dp_shard" of the job's
/// mesh, in the units of recipe.fsdp. If "dp" has more than one rank, its ranks
/// hold replicas of the shards.
/// Throws: mesh::UsageError at fsdp.units if a unit cannot be sharded or no
/// module matches.
std::unique_ptr<DataParallelModel> make_fully_sharded_model(
    const config::Recipe& recipe,
    const std::shared_ptr<models::Model>& model,
    const mesh::DeviceMesh& mesh);

} // namespace weft::train
