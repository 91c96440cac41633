#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor::kernels {

// Note [Grouped heads on many ranks]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Query head h of H attends to key head h / (H / K) of K. Where the cuts of the
// query's heads cut the keys' so that each rank has whole groups, keys and
// values are cut with them. Otherwise (fewer key heads than ranks, or a rank
// that begins within a group) each rank has all of them and takes those that
// its query heads need, a view of them if these are whole groups of equal
// size; their gradient is a pending sum over the ranks. The query stays cut
// either way.

/// H of [.., H, T, D]; 1 if there is no such dim.
int64_t head_count(const at::Tensor& tensor);

/// Whether a key or value has fewer heads than the query, but more than one.
bool has_groups(const at::Tensor& query, const at::Tensor& other);

/// Whether the cuts of the query's heads leave each rank whole groups of those
/// of `other`. `query_spec`: where the query lies.
bool groups_lie_alike(
    const DTensorSpec& query_spec,
    const at::Tensor& query,
    const at::Tensor& other);

/// Of a key or value with all heads, those to which the query heads of this
/// rank attend: so many that each serves as many query heads.
at::Tensor heads_for(
    const DTensorSpec& query_spec,
    const at::Tensor& query,
    const at::Tensor& whole);

} // namespace weft::dtensor::kernels
