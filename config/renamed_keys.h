#pragma once

#include <span>
#include <string_view>

namespace weft::config {

/// A recipe key that had another name before. A user's recipe with the former
/// name is refused with a message that has the new name; stored recipes of runs
/// and checkpoints are read.
struct RenamedKey {
  std::string_view before;
  std::string_view now;
};

std::span<const RenamedKey> renamed_keys();

/// Returns the entry of a key's former name, or null.
const RenamedKey* find_renamed_key(std::string_view before);

/// Returns the entry of a section's former name, or null. `now` is the section
/// of most of its keys.
const RenamedKey* find_renamed_section(std::string_view before);

} // namespace weft::config
