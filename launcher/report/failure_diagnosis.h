#pragma once

#include <string_view>

#include "launcher/process/oom_monitor.h"
#include "launcher/process/outcome.h"
#include "launcher/report/report.h"

namespace weft::launcher {

/// Adds to the failures of a run when they happened and what they are, by what
/// the workers have left behind and by what the kernel counts.
void add_evidence(
    Outcome& outcome,
    const ReportSources& sources,
    MemoryWatch& memory);

/// What a failed worker's last words make of its failure.
Finding find_in_words(const WorkerExit& exit, std::string_view words);

} // namespace weft::launcher
