#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::data_parallel {

/// How one tensor dim of a parameter is sharded by the parameter's mesh dims,
/// relative to another mesh dim that is to shard it too.
struct DimShardCounts {
  /// The number of shards by mesh dims before that one, and by mesh dims after
  /// it.
  int64_t before = 1;
  int64_t after = 1;
  /// True if no Shard has given sizes.
  bool is_plain = true;
};

/// Counts the shards. `dp` must be 1-D.
DimShardCounts other_shards_of_dim(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp,
    int64_t tensor_dim);

/// Returns the placement over `dp` that shards the local tensor of a parameter
/// by rows (dim 0), ceil(rows / ranks) each: a Shard(0), or a StridedShard(0)
/// if mesh dims after `dp` shard the rows first. Those may shard them by given
/// sizes.
dtensor::Placement row_placement(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp);

} // namespace weft::data_parallel
