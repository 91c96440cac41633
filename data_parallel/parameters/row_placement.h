#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// How one tensor dim of a parameter is cut by its own mesh dims, seen from
/// another mesh dim that is to cut it too.
struct DimShardCounts {
  /// Parts by mesh dims before that one, and by those behind it.
  int64_t before = 1;
  int64_t after = 1;
  /// None of the cuts has sizes of its own.
  bool is_plain = true;
};

/// `dp`: of one dim.
DimShardCounts other_shards_of_dim(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp,
    int64_t tensor_dim);

/// The placement over `dp` that cuts what this rank holds of a parameter by
/// rows (dim 0), ceil(rows / ranks) from the first rank on: a Shard(0), or a
/// StridedShard(0) behind the mesh dims after `dp` that cut the rows first.
/// None if a mesh dim cuts the rows into parts of given sizes.
std::optional<dtensor::Placement> row_placement(
    const at::Tensor& parameter,
    const mesh::DeviceMesh& dp);

} // namespace weft::ddp
