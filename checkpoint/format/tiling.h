#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// Returns an error if the boxes of `chunks`, each inside `shape` and not
/// empty, do not tile it: the first element in row-major order that is in no
/// chunk or in several. Takes n log n time for n chunks.
std::optional<std::string> tiling_error(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks);

/// Like tiling_error(), for the bytes [header_bytes, bytes) of a file. Sorts
/// `ranges`.
std::optional<std::string> range_error(
    const FileRecord& file,
    std::vector<std::pair<int64_t, int64_t>>& ranges);

} // namespace weft::checkpoint
