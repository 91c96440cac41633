#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace weft::dtensor {

/// The norms of whole DTensors, below autograd: each rank's own, joined by one
/// small reduction for all tensors that are cut alike.
/// Shapes: each norm has no dims, and every rank has it.
/// Collective: the ranks that share any of the tensors; blocks.
std::vector<at::Tensor> foreach_norm(
    at::TensorList self,
    const at::Scalar& ord,
    std::optional<at::ScalarType> dtype);

} // namespace weft::dtensor
