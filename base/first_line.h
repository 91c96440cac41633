#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace weft::base {

/// What a file of /proc or /sys says in its first line; nothing if it is not
/// there or empty.
std::optional<std::string> first_line(const std::filesystem::path& path);

} // namespace weft::base
