#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// Rows of each group, which lie one after the other.
using GroupCounts = std::vector<int64_t>;

/// Each group's rows times its matrix: one product a group, of exactly its
/// rows. Plain tensors; differentiable, any number of times.
/// Shapes: rows [S, I], matrices [E, I, O] in any layout, counts E numbers
/// that add up to S; to [S, O].
at::Tensor grouped_mm(
    const at::Tensor& rows,
    const at::Tensor& matrices,
    const GroupCounts& counts);

} // namespace weft::dtensor
