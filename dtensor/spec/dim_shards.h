#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "dtensor/spec/placement.h"

namespace weft::dtensor {

/// Rows [begin, begin + length) of one tensor dim that one rank holds; `chunk`
/// is the largest length any rank holds. Unit: rows.
struct ShardRange {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t chunk = 0;
};

/// What rank `index` of `num_shards` holds of `size` rows: see
/// Note [Uneven shards].
ShardRange shard_range(int64_t size, int64_t num_shards, int64_t index);

/// Rows [begin, begin + length) of a tensor dim. Unit: rows.
struct RowRange {
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const RowRange&) const = default;
};
using RowRanges = std::vector<RowRange>;

/// One mesh dim's cut of a tensor dim, which takes the place of what the cuts
/// before it left.
struct DimShard {
  int64_t mesh_dim;
  /// Ranks of the mesh dim.
  int64_t shards;
  /// More than 1: every one of so many chunks is cut, not the whole.
  int64_t split_factor = 1;
  /// Rows of each rank; empty: by the chunk rule.
  std::vector<int64_t> sizes = {};

  bool operator==(const DimShard&) const = default;
};
using DimShards = c10::SmallVector<DimShard, 2>;

/// The cuts of a tensor dim in the order in which they apply, the outermost
/// first. Mesh dims of one rank cut nothing and are left out, but for Shards of
/// given sizes with `all_sizes`. See Note [Order of shards]. A function of its
/// arguments alone.
DimShards dim_shards(
    const Placements& placements,
    c10::IntArrayRef mesh_shape,
    int64_t tensor_dim,
    bool all_sizes = false);

/// How many of `size` rows the rank `index` of the cut's mesh dim holds.
int64_t shard_length(const DimShard& cut, int64_t size, int64_t index);

/// Where they are: in ascending order.
RowRanges shard_rows(const DimShard& cut, int64_t size, int64_t index);

/// The rows of a dim of `size` rows that the rank at `coordinate` holds after
/// all `cuts`; adjacent ones in one range, none as one empty range.
RowRanges
rows_at(const DimShards& cuts, int64_t size, c10::IntArrayRef coordinate);

} // namespace weft::dtensor
