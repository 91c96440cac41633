#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "dtensor/spec/placement.h"

namespace weft::dtensor {

/// Rows [begin, begin + length) of a tensor dim on one rank. `chunk` is the
/// largest length of any rank.
/// Unit: rows.
struct ShardRange {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t chunk = 0;
};

/// Returns the rows of rank `index` of `num_shards` for a dim of `size` rows.
/// See Note [Uneven shards].
ShardRange shard_range(int64_t size, int64_t num_shards, int64_t index);

/// Rows [begin, begin + length) of a tensor dim. Unit: rows.
struct RowRange {
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const RowRange&) const = default;
};
using RowRanges = std::vector<RowRange>;

/// How one mesh dim shards a tensor dim, after the mesh dims before it.
struct DimShard {
  int64_t mesh_dim;
  /// The number of ranks of the mesh dim.
  int64_t shards;
  /// The number of chunks that are sharded separately. 1 shards the dim as one
  /// piece.
  int64_t split_factor = 1;
  /// The rows of each rank. Empty means the chunk rule.
  std::vector<int64_t> sizes = {};

  bool operator==(const DimShard&) const = default;
};
using DimShards = c10::SmallVector<DimShard, 2>;

/// Returns how mesh dims shard a tensor dim, outermost first. Mesh dims of one
/// rank are left out, except Shards with given sizes if `all_sizes`. See Note
/// [Order of shards]. Deterministic.
DimShards dim_shards(
    const Placements& placements,
    c10::IntArrayRef mesh_shape,
    int64_t tensor_dim,
    bool all_sizes = false);

/// Returns how many of `size` rows the rank `index` of the mesh dim holds.
int64_t shard_length(const DimShard& cut, int64_t size, int64_t index);

/// Returns the rows that shard_length() counts, in ascending order.
RowRanges shard_rows(const DimShard& cut, int64_t size, int64_t index);

/// Returns the rows of a dim of `size` rows that the rank at `coordinate` holds
/// after the dim was sharded by all `cuts`. Adjacent rows form one range.
/// Returns one empty range if the rank holds no rows.
RowRanges
rows_at(const DimShards& cuts, int64_t size, c10::IntArrayRef coordinate);

} // namespace weft::dtensor
