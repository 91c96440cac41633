#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/host_options.h"
#include "launcher/options/line_filter.h"
#include "launcher/options/stream_selection.h"
#include "launcher/process/numa_binding.h"

namespace weft::launcher {

/// What the command line and the PET_* variables ask for, checked.
struct Options {
  /// Workers to start, one rank each.
  int worker_count = 1;
  NumaBinding numa_binding = NumaBinding::kNone;
  /// Each worker is local rank 0 of a host with one device, its own.
  bool virtual_local_rank = false;
  std::string role = "default";
  std::string run_id = "none";
  HostOptions hosts;
  int max_restarts = 0;
  /// Empty: a temporary folder.
  std::string log_dir;
  StreamSelection redirects;
  StreamSelection tee;
  /// `${role_name}`, `${rank}`, `${local_rank}`, `${hostname}` stand for the
  /// worker's.
  std::string log_line_prefix_template = "[${role_name}${local_rank}]:";
  /// Local ranks whose output reaches the console; empty: all.
  std::vector<int> local_ranks_filter;
  /// Lines of streams in `tee` that are also copied to one file for all ranks.
  LineFilter stdout_filter;
  LineFilter stderr_filter;
  /// Signals that are forwarded to the workers and end the run.
  std::vector<int> signals;
  /// From a forwarded signal to SIGKILL.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
  /// The program and its arguments.
  std::vector<std::string> command;
};

/// Options, or a text to print instead of running anything.
struct ParsedCommandLine {
  std::optional<Options> options;
  std::string text;
};

/// Reads `weftrun [flags] [--] program args...`. Flags are torchrun's, with
/// dashes or underscores; PET_<FLAG> stands in for one that is not given.
/// Throws: LaunchError on anything unknown, malformed or out of range.
ParsedCommandLine parse_command_line(int argc, const char* const* argv);

} // namespace weft::launcher
