#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// Redistributes to a spec on the tensor's own mesh. `name` is shown in the
/// flight recorder, in forward and backward.
at::Tensor redistribute_to(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name);

/// Optional arguments of to_local_impl().
struct ToLocalImplOptions {
  /// True if the user or a style requested the placement. Otherwise a
  /// redistribution is implicit; see ExplicitRedistribution.
  bool asked = false;
  /// True splits the redistribution of the gradient into two autograd nodes:
  /// one starts it, and the other one waits for it. Nodes with the sequence
  /// number deferred_sequence_nr() run between them.
  bool in_two_steps = false;
  /// If set, this function computes the local tensor of `want`, and no
  /// redistribution runs. It is called below autograd's dispatch keys, so the
  /// graph does not record its ops.
  std::function<at::Tensor()> move = {};
};

/// Passes a DTensor to a region that computes with plain local tensors:
/// redistributes it to `want` and returns its local tensor, whose gradient has
/// the placements of `grad`. Calls with the same arguments for the same version
/// of a tensor share one result: see Note [Shared redistribution].
/// Collective: all ranks of the mesh, unless the tensor already has the
/// placements.
at::Tensor to_local_impl(
    const at::Tensor& dtensor,
    const DTensorSpec& want,
    const Placements& grad,
    std::string_view name,
    const ToLocalImplOptions& options = {});

/// Returns a position in backward's order: after the gradient of `entered`,
/// which to_local_impl() returned, was sent, and before it has arrived. Empty
/// unless it is redistributed in two steps. See Note [Deferred weight
/// gradients].
std::optional<uint64_t> deferred_sequence_nr(const at::Tensor& entered);

/// Wraps the local result of a region. An arriving gradient is redistributed to
/// `grad` (default: `spec` with Partial replaced by Replicate) before the
/// region gets its local tensor.
at::Tensor from_local_impl(
    const at::Tensor& local,
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef global_strides,
    std::string_view name,
    const std::optional<Placements>& grad = std::nullopt);

} // namespace weft::dtensor
