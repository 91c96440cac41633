#pragma once

#include "config/recipe.h"

namespace weft::recipes {

/// Returns the recipe with the open choices of the run's earlier processes, as
/// far as this host supports them, so that a resumed run computes the same
/// bits. These are the matmul library (`products: auto`; libtorch if oneDNN is
/// not available) and, on the same mesh, the link costs. Reads the newest
/// checkpoint with a readable manifest, unless the run starts over. Does not
/// communicate.
Recipe with_earlier_choices(Recipe recipe, bool fresh);

} // namespace weft::recipes
