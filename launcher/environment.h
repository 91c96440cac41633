#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/process/local_ranks.h"
#include "launcher/process/rank_assignment.h"

namespace weft::launcher {

/// The values that a worker's environment needs besides the options.
struct WorkerContext {
  /// The assignment, including the port of the store.
  RankAssignment rank_assignment;
  /// The workers of this host that belong to the assignment.
  LocalRanks workers = {};
  /// The number of this replica group, and that of all. 0 groups means that
  /// there are none.
  int replica_group = 0;
  int replica_groups = 0;
  /// The number of this life of the replica group.
  uint64_t group_life = 0;
  /// The worker's connection to the lighthouse. -1 means that there is none.
  int lighthouse_fd = -1;
  /// The socket that is bound to that port, which rank 0 inherits. -1 means
  /// that there is none.
  int master_fd = -1;
  /// The time at which the outermost weftrun started, if it is this one, in
  /// seconds since the epoch.
  std::string start_time;
  std::string error_file;
  /// True if the worker's standard error reaches a terminal through a pipe.
  bool stderr_is_terminal = false;
};

/// Returns the environment of worker `local_rank` as NAME=value, derived from
/// `base` (this process's): torchrun's variables, those of torchft
/// (REPLICA_GROUP_ID, NUM_REPLICA_GROUPS) for a replica group, WEFT_LAUNCH_T0
/// (kept if set), WEFT_STDERR_TTY=1 (on a terminal only), with several hosts
/// WEFT_BIND_ADDR (this host's address for the other hosts), and for rank 0
/// WEFT_MASTER_FD. See set_virtual_device() for the effect of
/// --virtual-local-rank. Source:
/// torch/distributed/elastic/agent/server/local_elastic_agent.py.
std::vector<std::string> worker_environment(
    const std::vector<std::string>& base,
    const Options& options,
    const WorkerContext& context,
    int local_rank);

/// Returns this process's environment as NAME=value.
std::vector<std::string> current_environment();

} // namespace weft::launcher
