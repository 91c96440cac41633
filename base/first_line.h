#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace weft::base {

/// Returns the first line of a file in /proc or /sys. Empty if the file does
/// not exist or is empty.
std::optional<std::string> first_line(const std::filesystem::path& path);

} // namespace weft::base
