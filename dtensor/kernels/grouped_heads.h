#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor::kernels {

// Note [Grouped heads on many ranks]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Query head h of H attends to key head h / (H / K) of K. Where the shards of
// the query's heads cut the keys' so that each rank has whole groups, keys and
// values are cut with them. Otherwise (fewer key heads than ranks, or a rank
// that begins within a group) each rank has all of them and takes those that
// its query heads need, a view of them if these are whole groups of equal
// size; their gradient is a Partial sum over the ranks. The query stays cut
// either way.

/// Returns H of [.., H, T, D], or 1 if there is no such dim.
int64_t head_count(const at::Tensor& tensor);

/// Returns true if a key or value has more than one head but fewer than the
/// query.
bool has_groups(const at::Tensor& query, const at::Tensor& other);

/// Returns true if the sharding of the query's heads gives each rank complete
/// groups of the heads of `other`. `query_spec` is the query's spec.
bool groups_lie_alike(
    const DTensorSpec& query_spec,
    const at::Tensor& query,
    const at::Tensor& other);

/// Selects from a key or value with all heads those to which this rank's query
/// heads attend, so that each serves the same number of query heads.
at::Tensor heads_for(
    const DTensorSpec& query_spec,
    const at::Tensor& query,
    const at::Tensor& whole);

} // namespace weft::dtensor::kernels
