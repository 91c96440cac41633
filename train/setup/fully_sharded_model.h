#pragma once

#include <memory>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "models/model.h"
#include "train/setup/data_parallel_model.h"

namespace weft::recipes {

/// Divides a placed model, which has no values yet, over `shards`, a mesh of
/// one dim, in the units that recipe.fsdp names.
/// Throws: mesh::UsageError at fsdp.units.
std::unique_ptr<DataParallelModel> make_fully_sharded_model(
    const Recipe& recipe,
    const std::shared_ptr<Model>& model,
    const mesh::DeviceMesh& shards);

} // namespace weft::recipes
