#pragma once

#include <cstdint>

#include "base/log.h"

namespace weft::mesh {

/// Returns a logger to standard error for a rank, with the level of
/// WEFT_LOG_LEVEL.
base::Logger rank_logger(int64_t rank);

} // namespace weft::mesh
