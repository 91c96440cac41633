#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorOptions.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

// libtorch's factories for DTensors, e.g.
//   zeros({4, 6}, at::kFloat, {mesh, {Shard(0)}})
// Each rank computes its part alone: no rank has the whole, and nothing is
// communicated. Without a device in `options` tensors are made on the rank's
// own. Values do not depend on the mesh, bitwise. A Partial holds terms of
// the value: rank 0 of the mesh dim the value and the others 0, for a sum.
// Throws: c10::ValueError for placements that do not fit `sizes`.
// Source: torch/distributed/tensor/_api.py.

/// Returns a DTensor with uninitialized memory.
at::Tensor empty(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
at::Tensor zeros(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
at::Tensor ones(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
at::Tensor full(
    c10::IntArrayRef sizes,
    const at::Scalar& value,
    const at::TensorOptions& options,
    const DTensorSpec& spec);

/// Draws from U[0, 1) (rand) and N(0, 1) (randn) with the mesh's next random
/// key. See random_state.h.
/// Collective: none, but every rank of the mesh must call it.
at::Tensor rand(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
at::Tensor randn(
    c10::IntArrayRef sizes,
    const at::TensorOptions& options,
    const DTensorSpec& spec);

/// Returns a sequence with libtorch's sizes and dtypes. Elements are computed
/// from their index in double (int64 for integers), so the last bit of a float
/// may differ from libtorch's.
at::Tensor arange(
    const at::Scalar& start,
    const at::Scalar& end,
    const at::Scalar& step,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
at::Tensor arange(
    const at::Scalar& end,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
at::Tensor linspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    const at::TensorOptions& options,
    const DTensorSpec& spec);
/// Returns base^start ... base^end.
at::Tensor logspace(
    const at::Scalar& start,
    const at::Scalar& end,
    int64_t steps,
    double base,
    const at::TensorOptions& options,
    const DTensorSpec& spec);

} // namespace weft::dtensor
