#include "cli/log.h"

#include "mesh/bootstrap/env.h"

namespace weft::cli {

base::Logger command_log() {
  return base::stderr_logger(mesh::env::get(base::kLogLevelVariable));
}

} // namespace weft::cli
