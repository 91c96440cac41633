#pragma once

#include <string>
#include <string_view>

#include "base/edit_distance.h"

namespace weft::recipes {

using base::edit_distance;

/// The one of `names` that a mistyped `word` is likely to be; empty: none.
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

/// What may have been meant by the unknown dotted key `path`, as the end of a
/// sentence: "did you mean model.heads?", or the keys that there are.
std::string suggest_key(std::string_view path);

} // namespace weft::recipes
