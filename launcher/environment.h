#pragma once

#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/process/rank_assignment.h"

namespace weft::launcher {

/// What a worker's environment needs besides the options.
struct WorkerContext {
  /// With the port of the store in it.
  RankAssignment rank_assignment;
  /// The socket bound to that port, which rank 0 inherits; -1: none is.
  int master_fd = -1;
  /// When the outermost weftrun started, if it is this one. Units: seconds
  /// since the epoch.
  std::string start_time;
  std::string error_file;
  /// Whether the worker's standard error ends on a terminal, through a pipe.
  bool stderr_is_terminal = false;
};

/// The environment of worker `local_rank` as NAME=value, made from `base`
/// (this process's): torchrun's variables, WEFT_LAUNCH_T0 (kept if set),
/// WEFT_STDERR_TTY=1 (on a terminal only), over several hosts WEFT_BIND_ADDR
/// (this host's address for the others) and, for rank 0, WEFT_MASTER_FD. See
/// set_virtual_device() for what --virtual-local-rank changes.
/// Source: torch/distributed/elastic/agent/server/local_elastic_agent.py.
std::vector<std::string> worker_environment(
    const std::vector<std::string>& base,
    const Options& options,
    const WorkerContext& context,
    int local_rank);

/// This process's environment as NAME=value.
std::vector<std::string> current_environment();

} // namespace weft::launcher
