#pragma once

#include <string>
#include <string_view>

namespace weft::recipes {

/// Puts `text` at `path` at once: who reads it sees the old file or the new
/// one, never a part.
/// Throws: mesh::UsageError: `cannot write "PATH": why`.
void write_file(const std::string& path, std::string_view text);

} // namespace weft::recipes
