#pragma once

#include <string>
#include <string_view>

#include "mesh/edit_distance.h"

namespace weft::recipes {

using mesh::edit_distance;

/// What may have been meant by the unknown dotted key `path`, as the end of a
/// sentence: "did you mean model.heads?", or the keys that there are.
std::string suggest_key(std::string_view path);

} // namespace weft::recipes
