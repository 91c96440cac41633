#pragma once

#include <string>

namespace weft::launcher {

/// The path of `program`: itself if it has a slash, else the first match in
/// PATH.
/// Throws: LaunchError if there is none, or it is a folder or not executable.
std::string find_program(const std::string& program);

} // namespace weft::launcher
