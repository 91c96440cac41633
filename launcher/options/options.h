#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "launcher/options/host_options.h"
#include "launcher/options/line_filter.h"
#include "launcher/options/stream_selection.h"
#include "launcher/process/numa_binding.h"

namespace weft::launcher {

/// The validated options of the command line and the PET_* variables.
struct Options {
  /// The number of workers to start, one per rank.
  int worker_count = 1;
  /// The number of workers of a replica group, which starts and ends by itself.
  /// 0 means that all workers start and end together.
  int replica_size = 0;
  NumaBinding numa_binding = NumaBinding::kNone;
  /// Presents each worker as local rank 0 of a host with one device, its own.
  bool virtual_local_rank = false;
  std::string role = "default";
  std::string run_id = "none";
  HostOptions hosts;
  int max_restarts = 0;
  /// The folder for logs. Empty selects a temporary folder.
  std::string log_dir;
  StreamSelection redirects;
  StreamSelection tee;
  /// `${role_name}`, `${rank}`, `${local_rank}` and `${hostname}` are replaced
  /// by the worker's values.
  std::string log_line_prefix_template = "[${role_name}${local_rank}]:";
  /// The least level of log lines, if the user chose one.
  std::optional<base::LogLevel> log_level;
  /// The local ranks whose output reaches the console. Empty selects all.
  std::vector<int> local_ranks_filter;
  /// The filters for lines of streams in `tee` that are also copied to one file
  /// for all ranks.
  LineFilter stdout_filter;
  LineFilter stderr_filter;
  /// The signals that are forwarded to the workers and end the run.
  std::vector<int> signals;
  /// The time from a forwarded signal to SIGKILL.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(30);
  /// The program and its arguments.
  std::vector<std::string> command;
};

/// Options, or a text to print instead of running a program.
struct ParsedCommandLine {
  std::optional<Options> options;
  std::string text;
};

/// Parses `weftrun [flags] [--] program args...`. The flags are torchrun's,
/// with dashes or underscores. PET_<FLAG> sets a flag that is not given.
/// Throws: LaunchError if a flag is unknown, malformed or out of range.
ParsedCommandLine parse_command_line(int argc, const char* const* argv);

} // namespace weft::launcher
