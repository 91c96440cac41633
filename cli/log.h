#pragma once

#include "base/log.h"

namespace weft::cli {

/// Returns the log of a command that has its result on standard output: on
/// standard error, with the level of --log-level or WEFT_LOG_LEVEL.
base::Logger command_log();

} // namespace weft::cli
