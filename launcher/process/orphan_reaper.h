#pragma once

#include <filesystem>

#include <sys/types.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// A guard process that kills the registered process groups if this process
/// dies, even of SIGKILL. PR_SET_PDEATHSIG alone ends the workers, but not the
/// processes that they have started.
class OrphanReaper {
 public:
  /// Forks the guard process. If this process dies, the guard deletes
  /// `temporary` (may be empty).
  explicit OrphanReaper(const std::filesystem::path& temporary);
  /// Makes the guard process kill the groups that are still registered, and
  /// waits until it has exited.
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  /// Registers the caller's process group. The caller is a child that is about
  /// to exec; only the child itself can register before it starts other
  /// processes.
  void register_self() const;
  /// Unregisters a group that no longer exists: its id may be reused.
  void forget(pid_t group) const;

 private:
  void send(pid_t message) const;

  pid_t pid_ = -1;
  base::UniqueFd pipe_;
};

} // namespace weft::launcher
