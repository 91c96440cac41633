#pragma once

#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/unique_fd.h"
#include "launcher/process/orphan_reaper.h"
#include "launcher/process/signals.h"

namespace weft::launcher {

/// The description of a process to start.
struct WorkerSpec {
  int rank = 0;
  /// The path of the program. Argument 0 is the name that the user gave.
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  /// The descriptors that become 0, 1 and 2. -1 inherits this process's.
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  /// Descriptors that stay open in the worker, with the same numbers.
  std::vector<int> inherited_fds = {};
  /// The CPUs that the worker may use. Empty means all that this process may
  /// use.
  std::set<int> cpus = {};
};

/// A started process. Its pid is also the id of its session and its process
/// group.
struct Worker {
  int rank = 0;
  pid_t pid = -1;
};

/// Receives the errors of forked children that could not exec their program.
class ExecReport {
 public:
  ExecReport();
  /// The descriptor for children to write to. A successful exec closes it.
  int write_end() const { return write_end_.get(); }
  /// Blocks until all children have started or failed. Must be called once.
  /// Throws: LaunchError naming `program` if a child failed.
  void wait(const std::string& program);

 private:
  base::UniqueFd read_end_;
  base::UniqueFd write_end_;
};

/// Forks and executes a worker in a session of its own. The kernel kills it
/// when this process dies, and `guard` watches it. Must be called from a thread
/// that lives as long as the process, because PR_SET_PDEATHSIG refers to the
/// death of that thread.
/// Throws: LaunchError if the fork fails.
Worker spawn(
    const WorkerSpec& spec,
    const SignalQueue& signals,
    const ExecReport& report,
    const OrphanReaper& guard);

} // namespace weft::launcher
