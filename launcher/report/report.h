#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "launcher/output/line_tail.h"
#include "launcher/process/outcome.h"
#include "launcher/report/error_file.h"

namespace weft::launcher {

/// The sources of a rank's output for the report.
struct ReportSources {
  std::string host;
  int worker_count = 0;
  std::function<LineTail(int rank)> tail;
  std::function<ErrorFile(int rank)> error;
  /// The log folder, which the report names. Empty if no logs were kept.
  std::filesystem::path logs;
};

/// Returns the text for standard error after a run that failed: the failed
/// ranks, the last output and backtrace of the root cause, and as the last line
/// `ERROR <code> rank=<r> op=<op> <sentence>`, the worker's own if it wrote
/// one. Empty if the run succeeded.
std::string report(const Outcome& outcome, const ReportSources& sources);

} // namespace weft::launcher
