#include "mesh/bootstrap/rank_logger.h"

#include "mesh/bootstrap/env.h"

namespace weft::mesh {

base::Logger rank_logger(int64_t rank) {
  return base::stderr_logger(
      env::get(base::kLogLevelVariable), base::rank_source(rank));
}

} // namespace weft::mesh
