#pragma once

#include <string>

namespace weft::launcher {

/// Returns the path of `program`: unchanged if it contains a slash, otherwise
/// the first match in PATH.
/// Throws: LaunchError if there is none, or if it is a folder or not
/// executable.
std::string find_program(const std::string& program);

} // namespace weft::launcher
