#pragma once

#include "config/recipe.h"

namespace weft::recipes {

/// Checks the keys of `model` against each other, the data's type and the mesh,
/// which has no -1 any more, and fills in what they leave open.
/// Throws: mesh::UsageError at the offending key, with both numbers.
void resolve_model(Recipe& recipe);

} // namespace weft::recipes
