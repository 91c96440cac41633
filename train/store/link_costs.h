#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "mesh/link_cost.h"

namespace weft::recipes {

/// Fills in the prices of links that `recipe` leaves open with `earlier` ones.
void adopt_link_costs(Recipe& recipe, LinksConfig earlier);

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
