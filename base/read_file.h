#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace weft::base {

/// Returns the bytes of a file. Empty if it cannot be opened or read.
/// Throws: std::bad_alloc (a stream's `<< file.rdbuf()` would return a part).
std::optional<std::string> read_file(const std::filesystem::path& path);

} // namespace weft::base
