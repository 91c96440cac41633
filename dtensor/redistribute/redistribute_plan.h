#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "dtensor/redistribute/cost_model.h"
#include "dtensor/spec/spec.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// One step of a redistribution: nothing, or one collective.
struct PlanStep {
  StepKind kind = StepKind::kLocal;
  /// Whose placements change, and over whose ranks together it communicates;
  /// ascending.
  std::vector<int64_t> mesh_dims;
  /// Of the whole mesh, before and after.
  Placements from;
  Placements to;
  /// What the ranks of `mesh_dims` hold of the tensor together; of an
  /// all_to_all the larger of what a rank holds before and after, or what the
  /// busiest rank sends. On the ranks that hold most.
  double bytes = 0;
  /// Estimated microseconds.
  double us = 0;
  /// Those of `us` that it takes whatever it moves.
  double min_us = 0;
};

struct RedistributePlan {
  std::vector<PlanStep> steps;
  double us = 0;
};

/// The cheapest steps from one spec to another for a tensor of these sizes: see
/// Note [Shortest plans]. The same on every rank of the mesh; kept in the mesh.
/// Shapes: both specs are fitted() to `global_sizes`.
std::shared_ptr<const RedistributePlan> find_plan(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

/// The same, looked for anew.
RedistributePlan search_plan(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

/// Bytes that the busiest rank receives when a tensor of these sizes goes from
/// one spec to another by the plan of find_plan(), which is the one that runs;
/// for messages. Throws: as fitted().
double redistributed_bytes(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

/// Whether the messages of several plans cost less if those of one kind over
/// the same ranks go out as one, which copies them. The same on every rank.
bool is_cheaper_coalesced(
    const std::vector<std::shared_ptr<const RedistributePlan>>& plans);

/// The group over `mesh_dims`, row-major; made at the first call if there are
/// several.
/// Collective: the group's ranks.
mesh::Communicator group_of(
    const mesh::DeviceMesh& mesh,
    const std::vector<int64_t>& mesh_dims);

} // namespace weft::dtensor
