#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"
#include "mesh/link_cost.h"

namespace weft::dtensor {

/// One step of a redistribution: what happens on one mesh dim.
struct RedistributeStep {
  int64_t mesh_dim;
  Placement from;
  Placement to;
};

/// Steps of one mesh dim each from one spec to another, whatever they cost:
/// inner shards are gathered before the outer ones that they cut, and cut again
/// after them. Any placements; see Note [Steps of a redistribution]. Pure; the
/// same on every rank of the mesh. find_plan() has the cheapest ones.
std::vector<RedistributeStep> plan_redistribute(
    const DTensorSpec& from,
    const DTensorSpec& to);

/// Moves a local tensor from one spec to another by the plan of find_plan().
/// Not differentiable; the result may alias `local`. `name` goes to the ledger.
/// Shapes: `local` is this rank's part of `global_sizes` under `from`; both
/// specs are fitted() to them.
/// Collective: all ranks of the mesh.
/// Throws: c10::ValueError for R to P(product), and averages of integers; on
/// all ranks, before anything is sent.
at::Tensor redistribute_local(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name);

/// The same to a spec on any mesh over the same ranks, or on one that is a
/// slice of the tensor's or that the tensor's is a slice of. See Note [From
/// mesh to mesh]. Collective: all ranks of both meshes. Throws: as
/// redistribute_local(), and c10::ValueError naming both meshes if they belong
/// to different ranks.
at::Tensor redistribute_across(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name);

/// Throws: c10::ValueError if values of `dtype` cannot be written as the terms
/// of a reduction without changing them.
void check_partial_form(ReduceOp op, at::ScalarType dtype);

/// Microseconds to move a tensor of `bytes` over one mesh dim of `shards` ranks
/// and links that cost `link`; nothing between equal placements, infinite where
/// no step exists, and far more than anything else where a pending sum would be
/// made. See Note [Redistribution cost model].
double redistribute_cost(
    const Placement& from,
    const Placement& to,
    double bytes,
    int64_t shards,
    const mesh::LinkCost& link);

} // namespace weft::dtensor
