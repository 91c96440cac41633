#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "launcher/output/line_tail.h"
#include "launcher/process/outcome.h"
#include "launcher/report/error_file.h"

namespace weft::launcher {

/// Where the report finds a rank's last words.
struct ReportSources {
  std::string host;
  int worker_count = 0;
  std::function<LineTail(int rank)> tail;
  std::function<ErrorFile(int rank)> error;
  /// Named in the report; empty: none were kept.
  std::filesystem::path logs;
};

/// What is said on standard error after a run that did not end well: who
/// failed, the first cause's last words and backtrace, and last of all one line
/// `ERROR <code> rank=<r> op=<op> <sentence>`, the worker's own if it wrote
/// one. Empty if the run ended well.
std::string report(const Outcome& outcome, const ReportSources& sources);

} // namespace weft::launcher
