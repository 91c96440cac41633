#pragma once

#include <span>
#include <string_view>

namespace weft::recipes {

/// A key of recipes that had another name once. Recipes of users are refused
/// with the name of today; stored recipes of runs and checkpoints are read.
struct RenamedKey {
  std::string_view before;
  std::string_view now;
};

std::span<const RenamedKey> renamed_keys();

/// The row of a key's former name, or null.
const RenamedKey* find_renamed_key(std::string_view before);

/// The row of a section's former name, or null. `now` is where most of its keys
/// are.
const RenamedKey* find_renamed_section(std::string_view before);

} // namespace weft::recipes
