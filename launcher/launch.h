#pragma once

#include <string>

#include "launcher/options/options.h"

namespace weft::launcher {

/// Starts the workers, waits for them, reports, and returns the exit code.
/// `start_time` is what WEFT_LAUNCH_T0 is to be unless it is set.
/// Throws: LaunchError if they cannot be started; none runs then.
int launch(const Options& options, const std::string& start_time);

} // namespace weft::launcher
