#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "mesh/link_cost.h"

namespace weft::train {

/// Sets the link costs that `recipe` does not set to those of `earlier`, which
/// are the link costs of the run that is resumed.
void adopt_link_costs(config::Recipe& recipe, config::LinksConfig earlier);

/// Returns the recipe's link cost along "dp" or "tp". Empty leaves it to the
/// cost model.
std::optional<mesh::LinkCost> configured_link_cost(
    const config::Recipe& recipe,
    std::string_view mesh_dim);

/// Sets the mesh's link costs: the recipe's own, and measured ones for other
/// mesh dims if the recipe asks for measurement. Stores measured costs in
/// `recipe.links`.
/// Collective: all ranks, with equal recipes; blocks if it measures.
void resolve_link_costs(config::Recipe& recipe, const mesh::DeviceMesh& mesh);

/// Returns "links: dp 41 us, 1.3 GB/s; tp ...", for the user. Empty if the
/// costs of the fixed table apply.
std::string links_text(const config::Recipe& recipe);

} // namespace weft::train
