#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::recipes {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a`
/// into `b`. Source: Damerau (1964), in the optimal string alignment variant.
int64_t edit_distance(std::string_view a, std::string_view b);

/// What may have been meant by the unknown dotted key `path`, as the end of a
/// sentence: "did you mean model.heads?", or the keys that there are.
std::string suggest_key(std::string_view path);

} // namespace weft::recipes
