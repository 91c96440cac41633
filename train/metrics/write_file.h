#pragma once

#include <string>
#include <string_view>

namespace weft::train {

/// Writes `text` to `path` atomically: a reader sees the old or the new
/// content, never a part. A device or pipe is written to directly.
/// Throws: mesh::UsageError `cannot write "PATH": <reason>` if writing fails.
void write_file(const std::string& path, std::string_view text);

} // namespace weft::train
