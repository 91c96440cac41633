#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::recipes {

/// "rank 3", "ranks 0 and 1", "ranks 0, 1 and 3".
std::string list_ranks(const std::vector<int64_t>& ranks);

} // namespace weft::recipes
