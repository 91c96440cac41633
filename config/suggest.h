#pragma once

#include <string>
#include <string_view>

#include "base/edit_distance.h"

namespace weft::config {

using base::edit_distance;

/// Returns the most similar one of `names` for a mistyped `word`. Empty if none
/// is similar.
template <class Names>
std::string nearest_name(std::string_view word, const Names& names) {
  constexpr int64_t kNear = 2;
  int64_t least = kNear + 1;
  std::string nearest;
  for (const std::string_view name : names) {
    const auto distance = base::edit_distance(word, name);
    if (distance < least && distance < static_cast<int64_t>(name.size())) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

/// Returns a suggestion for the unknown dotted key `path`, as the end of a
/// sentence: "did you mean model.heads?", or the existing keys.
std::string suggest_key(std::string_view path);

} // namespace weft::config
