#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"
#include "mesh/link_cost.h"

namespace weft::dtensor {

/// One step of a redistribution: a change of placement on one mesh dim.
struct RedistributeStep {
  int64_t mesh_dim;
  Placement from;
  Placement to;
};

/// Returns steps of one mesh dim each from one spec to another, regardless of
/// cost: inner shards are gathered before the outer ones and sharded again
/// after them. Supports all placements; see Note [Steps of a redistribution].
/// Deterministic, so identical on every rank of the mesh. find_plan() returns
/// the cheapest steps.
std::vector<RedistributeStep> plan_redistribute(
    const DTensorSpec& from,
    const DTensorSpec& to);

/// Redistributes a local tensor by the plan of find_plan(). Not differentiable;
/// the result may alias `local`. The flight recorder shows `name`.
/// Shapes: `local` is this rank's part of `global_sizes` under `from`; both
/// specs are fitted() to them.
/// Collective: all ranks of the mesh.
/// Throws: c10::ValueError for R to P(product) and for averages of integers, on
/// all ranks, before anything is sent.
at::Tensor redistribute_local(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name);

/// Like redistribute_local(), to a spec on any mesh over the same ranks, or on
/// a mesh that is a slice of the tensor's mesh or has it as a slice. See
/// Note [From mesh to mesh].
/// Collective: all ranks of both meshes.
/// Throws: like redistribute_local(), and c10::ValueError naming both meshes if
/// they have different ranks.
at::Tensor redistribute_across(
    const at::Tensor& local,
    c10::IntArrayRef global_sizes,
    const DTensorSpec& from,
    const DTensorSpec& to,
    std::string_view name);

/// Throws: c10::ValueError if values of `dtype` cannot be represented as terms
/// of a reduction without changing them.
void check_partial_form(ReduceOp op, at::ScalarType dtype);

/// Returns the time in microseconds to redistribute a tensor of `bytes` over
/// one mesh dim of `shards` ranks with link cost `link`: 0 between equal
/// placements, infinity if there is no step, and a prohibitive value for a step
/// that creates a Partial. See Note [Redistribution cost model].
double redistribute_cost(
    const Placement& from,
    const Placement& to,
    double bytes,
    int64_t shards,
    const mesh::LinkCost& link);

} // namespace weft::dtensor
