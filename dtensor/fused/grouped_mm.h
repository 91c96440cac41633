#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// The number of rows of each group. Groups are consecutive.
using GroupCounts = std::vector<int64_t>;

/// Multiplies the rows of each group with the group's matrix, with one matmul
/// per group and without padding. Plain tensors only; differentiable to any
/// order.
/// Shapes: rows [S, I], matrices [E, I, O] in any layout, E counts whose sum is
/// S; result [S, O].
at::Tensor grouped_mm(
    const at::Tensor& rows,
    const at::Tensor& matrices,
    const GroupCounts& counts);

} // namespace weft::dtensor
