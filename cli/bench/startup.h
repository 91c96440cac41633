#pragma once

#include <optional>
#include <string>

#include "cli/bench/step.h"

namespace weft::recipes::bench {

/// Takes one training step and says how long each phase from the launch to the
/// end of that step took (`start_s`, rank 0's) and all of them together
/// (`first_step_s`, under the peer's name). A process starts only once: for a
/// median, launch it again. One line of JSON on rank 0, nothing on others.
/// Collective: dp * tp ranks.
/// Throws: mesh::UsageError if the device cannot be used.
std::optional<std::string> run_startup(StepOptions options);

} // namespace weft::recipes::bench
