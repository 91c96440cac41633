#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/ledger.h"

namespace weft::mesh {

/// "all_reduce #12 ("layers.0.wq" [2, 3] Float, 24 bytes)".
std::string call_text(const LedgerEntry& entry);

/// "rank 3", "ranks 0 to 2", "ranks 0, 2 and 5".
std::string ranks_text(const std::vector<int64_t>& ranks);

/// "15.2 s".
std::string seconds_text(int64_t nanoseconds);

} // namespace weft::mesh
