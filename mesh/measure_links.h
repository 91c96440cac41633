#pragma once

#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/link_cost.h"

namespace weft::mesh {

/// Times a few all_gathers and all_reduces along each mesh dim of `mesh`'s root
/// and fits latency and bandwidth to them: what collective_us() needs to
/// predict them. A fraction of a second. Rank 0's numbers, on every rank; from
/// now on they hold as by set_link_cost(). Mesh dims of one rank and imagined
/// worlds keep the table's.
/// Collective: all ranks of the root mesh; blocks.
/// Returns: one a dim of the root.
std::vector<LinkCost> measure_link_costs(const DeviceMesh& mesh);

/// What took how long.
struct TimedCollective {
  Collective kind;
  double bytes;
  double us;
};
/// Least squares over relative errors, kept within what links can be;
/// `otherwise` where the times say nothing (fewer than two of different sizes).
LinkCost fit_link_cost(
    const std::vector<TimedCollective>& timed,
    int64_t ranks,
    const LinkCost& otherwise);

} // namespace weft::mesh
