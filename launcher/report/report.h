#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "launcher/output/line_tail.h"
#include "launcher/process/outcome.h"

namespace weft::launcher {

/// The sources of a rank's output for the report.
struct ReportSources {
  std::string host;
  int worker_count = 0;
  std::function<LineTail(int rank)> tail;
  /// The log folder, which the report names. Empty if no logs were kept.
  std::filesystem::path logs;
};

/// The text for standard error after a run that failed.
struct Report {
  /// The failed ranks, and the last output and backtrace of the root cause,
  /// without a line feed at the end. May be empty.
  std::string text;
  /// The base::FailureLine, the worker's own if it wrote one.
  std::string line;
};

/// Returns the report of an outcome whose failures were diagnosed. `cause` is
/// root_cause(outcome). Empty if the run succeeded.
Report report(
    const Outcome& outcome,
    const std::optional<WorkerExit>& cause,
    const ReportSources& sources);

} // namespace weft::launcher
