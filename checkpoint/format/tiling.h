#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace weft::checkpoint {

/// Says what is wrong if the boxes of `chunks`, each inside `shape` and not
/// empty, do not tile it: names the first element, in row-major order, that is
/// in no chunk or in several. Time is n log n in the number of chunks.
std::optional<std::string> tiling_error(
    const std::vector<int64_t>& shape,
    const std::vector<Chunk>& chunks);

/// The same for the bytes [header_bytes, bytes) of a file; sorts `ranges`.
std::optional<std::string> range_error(
    const FileRecord& file,
    std::vector<std::pair<int64_t, int64_t>>& ranges);

} // namespace weft::checkpoint
