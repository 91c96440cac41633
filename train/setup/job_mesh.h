#pragma once

#include "config/recipe.h"
#include "mesh/device_mesh.h"

namespace weft::train {

/// Creates the mesh of a run, with the dims "dp" and "tp", and "dp_shard"
/// between them if its size is above 1.
/// Collective: all ranks of `world`, with the same recipe; blocks.
mesh::DeviceMesh make_job_mesh(
    const config::Recipe& recipe,
    const mesh::World& world);

/// Returns the dims of a run's mesh over which parameters are replicated or
/// sharded: "dp", "dp_shard", or both if both have several ranks.
mesh::DeviceMesh data_parallel_mesh(const mesh::DeviceMesh& mesh);

/// Returns the one-dimensional mesh of the ranks that compute different samples
/// of one batch. Rank i of n gets micro-batches i, i + n, i + 2n, ...
mesh::DeviceMesh batch_mesh(const mesh::DeviceMesh& mesh);

/// Returns the index in batch_mesh() of a rank of the run's world.
int64_t batch_rank(const config::Recipe& recipe, int64_t rank);

} // namespace weft::train
