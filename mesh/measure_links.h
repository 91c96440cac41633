#pragma once

#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/link_cost.h"

namespace weft::mesh {

/// Times some all_gathers and all_reduces along each mesh dim of the root of
/// `mesh`, fits the latency and bandwidth that collective_us() needs, and sets
/// them with set_link_cost(). Takes a fraction of a second. All ranks use rank
/// 0's values. Mesh dims of one rank and fake process groups keep their
/// default.
/// Collective: all ranks of the root mesh; blocks.
/// Returns: one cost per dim of the root.
std::vector<LinkCost> measure_link_costs(const DeviceMesh& mesh);

/// A collective and its duration.
struct TimedCollective {
  Collective kind;
  double bytes;
  double us;
};
/// Fits a link cost by least squares over relative errors, limited to plausible
/// values. Returns `otherwise` if there are fewer than two different sizes.
LinkCost fit_link_cost(
    const std::vector<TimedCollective>& timed,
    int64_t ranks,
    const LinkCost& otherwise);

} // namespace weft::mesh
