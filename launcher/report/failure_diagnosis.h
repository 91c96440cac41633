#pragma once

#include <string_view>

#include "launcher/process/oom_monitor.h"
#include "launcher/process/outcome.h"
#include "launcher/report/report.h"

namespace weft::launcher {

/// Adds to the failures of a run when they happened and what they are, by what
/// the workers have left behind and by what the kernel counts.
void diagnose_failures(
    Outcome& outcome,
    const ReportSources& sources,
    OomMonitor& memory);

/// What a failed worker's last words make of its failure.
FailureCause diagnose_stderr(
    const WorkerExit& exit,
    std::string_view stderr_text);

} // namespace weft::launcher
