#pragma once

#include <string>

#include "launcher/options/options.h"

namespace weft::launcher {

/// Starts the workers, waits for them, prints the report, and returns the exit
/// code. `start_time` becomes WEFT_LAUNCH_T0 unless that is set.
/// Throws: LaunchError if the workers cannot be started. None is then running.
int launch(const Options& options, const std::string& start_time);

} // namespace weft::launcher
