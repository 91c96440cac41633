#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec.h"

namespace weft::dtensor {

/// One step of a redistribution: what happens on one mesh dim.
struct RedistributeStep {
  int64_t mesh_dim;
  Placement from;
  Placement to;
};

/// The steps from one spec to another, in the order they run: inner shards are
/// gathered before the outer ones that they cut, and cut again after them. Any
/// placements; see Note [Steps of a redistribution]. Pure; the same on every
/// rank of the mesh.
std::vector<RedistributeStep> plan_redistribute(
    const DTensorSpec& from,
    const DTensorSpec& to);

/// Moves a local tensor from one spec to another. Not differentiable; the
/// result may alias `local`. `name` goes to the ledger.
/// Shapes: `local` is this rank's part of `global_sizes` under `from`; both
/// specs are fitted() to them.
/// Collective: all ranks of the mesh.
/// Throws: c10::ValueError for R to P(product), and averages of integers.
at::Tensor redistribute_local(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name);

/// Throws: c10::ValueError if values of `dtype` cannot be written as the terms
/// of a reduction without changing them.
void check_partial_form(ReduceOp op, at::ScalarType dtype);

/// A relative price of moving `bytes` (the whole tensor's) over one mesh dim
/// of `shards` ranks; nothing between equal placements, infinite where no step
/// exists.
double redistribute_cost(
    const Placement& from,
    const Placement& to,
    double bytes,
    int64_t shards);

/// The same values under another spec, below autograd.
at::Tensor redistribute_dtensor(
    const at::Tensor& dtensor,
    const DTensorSpec& to,
    std::string_view name);

} // namespace weft::dtensor
