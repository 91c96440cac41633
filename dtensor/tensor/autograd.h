#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// redistribute() to a spec of the tensor's own mesh. `name` is what the
/// ledger shows, forward and backward.
at::Tensor redistribute_to(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name);

/// What to_local_impl() leaves to be said.
struct ToLocalImplOptions {
  /// The user or a style said that the tensor is to lie so; otherwise moving it
  /// is implicit, see ExplicitRedistribution.
  bool asked = false;
  /// Backward, the gradient's move is started before the nodes that ask for a
  /// deferred_sequence_nr() what is handed out run, and waited for after them.
  bool in_two_steps = false;
  /// Moves the values instead of a redistribution: the local tensor of what is
  /// wanted. Below autograd.
  std::function<at::Tensor()> move = {};
};

/// Takes a DTensor into a region that computes with plain local tensors:
/// redistributes it to `want` and hands out its local tensor, whose gradient
/// will lie as `grad` says. Calls that ask the same of the same version of one
/// tensor share one result: see Note [Shared redistribution].
/// Collective: all ranks of the mesh, unless the tensor lies so already.
at::Tensor to_local_impl(
    const at::Tensor& dtensor,
    const DTensorSpec& want,
    const Placements& grad,
    std::string_view name,
    const ToLocalImplOptions& options = {});

/// A place in backward's order: after the gradient of `entered`, which
/// to_local_impl() handed out, has been sent, before it has arrived. None
/// unless it moves in two steps. See Note [Deferred weight gradients].
std::optional<uint64_t> deferred_sequence_nr(const at::Tensor& entered);

/// Wraps the local result of a region. The gradient that arrives is brought to
/// `grad` (default: `spec` with Partial replaced by Replicate) before its local
/// tensor is handed to the region.
at::Tensor from_local_impl(
    const at::Tensor& local,
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef global_strides,
    std::string_view name,
    const std::optional<Placements>& grad = std::nullopt);

} // namespace weft::dtensor
