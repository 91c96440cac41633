#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "dtensor/spec.h"

namespace weft::dtensor {

/// redistribute() to a spec of the tensor's own mesh. `name` is what the
/// ledger shows, forward and backward.
at::Tensor redistribute_to(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name);

/// Takes a DTensor into a region that computes with plain local tensors:
/// redistributes it to `want` and hands out its local tensor, whose gradient
/// will lie as `grad` says. Calls that ask the same of the same version of one
/// tensor share one result: see Note [Shared redistribution].
/// `asked`: the user or a style said that the tensor is to lie so; otherwise
/// moving it is implicit, see ExplicitRedistribution.
/// Collective: all ranks of the mesh, unless the tensor lies so already.
at::Tensor enter_local(
    const at::Tensor& dtensor,
    const DTensorSpec& want,
    const Placements& grad,
    std::string_view name,
    bool asked = false);

/// Wraps the local result of a region. The gradient that arrives is brought to
/// `grad` (default: `spec` with Partial replaced by Replicate) before its local
/// tensor is handed to the region.
at::Tensor leave_local(
    const at::Tensor& local,
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef global_strides,
    std::string_view name,
    const std::optional<Placements>& grad = std::nullopt);

} // namespace weft::dtensor
