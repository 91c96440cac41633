#pragma once

#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/unique_fd.h"
#include "launcher/process/orphan_reaper.h"
#include "launcher/process/signals.h"

namespace weft::launcher {

/// One process to start.
struct WorkerSpec {
  int rank = 0;
  /// Path of the program; argument 0 is as the user wrote it.
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  /// Become descriptors 0, 1 and 2; -1: as this process's.
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  /// Stays open in the worker, under the same number; -1: none.
  int inherited_fd = -1;
  /// It may run on these; empty: on all that this process may use.
  std::set<int> cpus = {};
};

/// A process that was started. Its pid is its session's and process group's.
struct Worker {
  int rank = 0;
  pid_t pid = -1;
};

/// Hears from forked children that could not start their program.
class ExecReport {
 public:
  ExecReport();
  /// Closes by itself in a child whose exec succeeds.
  int write_end() const { return write_end_.get(); }
  /// Waits until all children have started or failed; to be called once.
  /// Throws: LaunchError naming `program` if one failed.
  void wait(const std::string& program);

 private:
  base::UniqueFd read_end_;
  base::UniqueFd write_end_;
};

/// Forks and executes: in a session of its own, killed by the kernel when this
/// process dies, and watched by `guard`. To be called from the thread that
/// lives as long as the process: PR_SET_PDEATHSIG means the thread's death.
/// Throws: LaunchError if the fork fails.
Worker spawn(
    const WorkerSpec& spec,
    const SignalQueue& signals,
    const ExecReport& report,
    const OrphanReaper& guard);

} // namespace weft::launcher
