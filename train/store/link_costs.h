#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "mesh/link_cost.h"

namespace weft::recipes {

/// A recipe with the prices of links that an earlier part of the run on the
/// same mesh was planned by, where it does not give others: plans, and with
/// them the order of additions, stay as they were. Looks at the newest
/// checkpoint whose manifest can be read, unless the run starts over; no
/// communication.
Recipe with_resumed_link_costs(Recipe recipe, bool fresh);

/// What a recipe says of the links along "dp" or "tp"; nothing: it leaves them
/// to the cost model.
std::optional<mesh::LinkCost> configured_link_cost(
    const Recipe& recipe,
    std::string_view mesh_dim);

/// Sets the mesh's prices of links: those that `recipe` gives, what is measured
/// for others if it says so; `recipe.links` then has them all.
/// Collective: all ranks, with equal recipes; blocks if it measures.
void resolve_link_costs(Recipe& recipe, const mesh::DeviceMesh& mesh);

/// "links: dp 41 us, 1.3 GB/s; tp ...", for the user; empty where the fixed
/// table's prices hold.
std::string links_text(const Recipe& recipe);

} // namespace weft::recipes
