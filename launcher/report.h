#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "launcher/line_tail.h"
#include "launcher/outcome.h"

namespace weft::launcher {

/// Where the report finds a rank's last words.
struct ReportSources {
  std::string host;
  int worker_count = 0;
  std::function<LineTail(int rank)> tail;
  std::function<std::filesystem::path(int rank)> error_file;
  /// Named in the report; empty: none were kept.
  std::filesystem::path logs;
};

/// What is said on standard error after a run that did not end well: who
/// failed, the first cause's last words, and last of all one line
/// `ERROR <code> rank=<r> op=<op> <sentence>`, the worker's own if it wrote
/// one. Empty if the run ended well.
std::string report(const Outcome& outcome, const ReportSources& sources);

/// The message in an error file such as torchrun's workers write,
/// {"message": "..."} or {"message": {"message": "..."}}; empty if there is no
/// such file, or something else in it.
std::string read_error_file(const std::filesystem::path& path);

} // namespace weft::launcher
