#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace weft::dtensor {

/// Computes the norm of each full tensor, below autograd: each rank's norms are
/// joined by one small reduction for all tensors with the same sharding.
/// Shapes: each norm has no dims and is replicated.
/// Collective: the ranks that share any of the tensors; blocks.
std::vector<at::Tensor> foreach_norm(
    at::TensorList self,
    const at::Scalar& ord,
    std::optional<at::ScalarType> dtype);

} // namespace weft::dtensor
