#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/host_options.h"

namespace weft::launcher {

/// The flags as written. They are validated together after all are known.
struct Flags {
  HostFlags hosts;
  std::string nproc_per_node = "1";
  std::string rdzv_id;
  int max_restarts = 0;
  int replica_size = 0;
  double monitor_interval = 0.1;
  std::string role = "default";
  bool no_python = false;
  std::string numa_binding;
  bool virtual_local_rank = false;
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string log_line_prefix_template;
  std::string log_level;
  std::string local_ranks_filter;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  double shutdown_timeout = 30;
};

/// A parsed command line, or a text to print instead of running a program.
struct CommandLine {
  Flags flags;
  /// The program and its arguments.
  std::vector<std::string> command;
  /// The text of --help or --version. Empty if neither was given.
  std::string text;
};

/// Parses `weftrun [flags] [--] program args...` and the PET_* variables.
/// Throws: LaunchError if a flag is unknown or lacks its value.
CommandLine read_command_line(int argc, const char* const* argv);

/// Returns the valid flag that `flag` most likely meant: one that begins with
/// it, otherwise the one with the smallest edit distance.
std::string nearest_flag(
    std::string_view flag,
    const std::vector<std::string>& valid);

/// Returns a sentence about a flag that weftrun does not have.
std::string unknown_flag_message(
    std::string_view flag,
    const std::vector<std::string>& valid);

} // namespace weft::launcher
