#pragma once

#include <string_view>

#include "launcher/process/oom_monitor.h"
#include "launcher/process/outcome.h"
#include "launcher/report/report.h"

namespace weft::launcher {

/// Sets the time and the cause of each failure of a run, from the workers'
/// error files and standard error and from the kernel's counters.
void diagnose_failures(
    Outcome& outcome,
    const ReportSources& sources,
    OomMonitor& memory);

/// Returns the cause of a failed worker's failure, based on its last messages.
FailureCause diagnose_stderr(
    const WorkerExit& exit,
    std::string_view stderr_text);

} // namespace weft::launcher
