#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// The valid flag that `flag` most likely meant: one that begins with it, else
/// the one fewest edits away.
std::string nearest_flag(
    std::string_view flag,
    const std::vector<std::string>& valid);

/// One sentence on a flag that weftrun does not have.
std::string unknown_flag_message(
    std::string_view flag,
    const std::vector<std::string>& valid);

} // namespace weft::launcher
