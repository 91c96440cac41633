#pragma once

#include "config/recipe.h"

namespace weft::recipes {

/// A recipe whose open choices are those of an earlier part of the run, as far
/// as this host can have them, so that a resumed run computes the same bits:
/// the library that multiplies (`products: auto`; libtorch where oneDNN cannot
/// be had), and, on the same mesh, the prices of links. Looks at the newest
/// checkpoint whose manifest can be read, unless the run starts over; no
/// communication.
Recipe with_earlier_choices(Recipe recipe, bool fresh);

} // namespace weft::recipes
