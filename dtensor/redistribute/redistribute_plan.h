#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "dtensor/redistribute/cost_model.h"
#include "dtensor/spec/spec.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// One step of a redistribution: no communication, or one collective.
struct PlanStep {
  StepKind kind = StepKind::kLocal;
  /// The mesh dims whose placements change and over whose ranks the step
  /// communicates, ascending.
  std::vector<int64_t> mesh_dims;
  /// The placements on the whole mesh before and after.
  Placements from;
  Placements to;
  /// The tensor's size on the ranks of `mesh_dims` together; for an all_to_all,
  /// the larger of what one rank holds before and after, or what the busiest
  /// rank sends. The largest value over the ranks.
  double bytes = 0;
  /// The estimated time in microseconds.
  double us = 0;
  /// The part of `us` that does not depend on the size.
  double min_us = 0;
};

struct RedistributePlan {
  std::vector<PlanStep> steps;
  double us = 0;
};

/// Returns the cheapest steps from one spec to another for a tensor of these
/// sizes. See Note [Shortest plans]. Identical on every rank of the mesh, which
/// caches it.
/// Shapes: both specs are fitted() to `global_sizes`.
std::shared_ptr<const RedistributePlan> find_plan(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

/// Like find_plan(), without the cache.
RedistributePlan search_plan(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

/// Returns the bytes that the busiest rank receives when a tensor of these
/// sizes is redistributed by find_plan(). Used in messages.
/// Throws: like fitted().
double redistributed_bytes(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

/// Returns true if it costs less to send the messages of several plans together
/// (which copies them), if they have the same kind and ranks. Identical on
/// every rank.
bool is_cheaper_coalesced(
    const std::vector<std::shared_ptr<const RedistributePlan>>& plans);

/// Returns the group over `mesh_dims`, row-major. If there are several dims,
/// the first call creates it.
/// Collective: the group's ranks.
mesh::Communicator group_of(
    const mesh::DeviceMesh& mesh,
    const std::vector<int64_t>& mesh_dims);

} // namespace weft::dtensor
