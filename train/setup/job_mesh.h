#pragma once

#include "config/recipe.h"
#include "mesh/device_mesh.h"

namespace weft::recipes {

/// The mesh of a run: its dims are "dp" and "tp", and "dp_shard" between them
/// where that is above 1.
/// Collective: all ranks of `world`, with the same recipe; blocks.
mesh::DeviceMesh make_job_mesh(const Recipe& recipe, const mesh::World& world);

/// The ranks that compute different samples of one batch, as a mesh of one dim:
/// rank i of n has every n-th micro-batch, from the i-th on.
mesh::DeviceMesh batch_mesh(const mesh::DeviceMesh& mesh);

} // namespace weft::recipes
