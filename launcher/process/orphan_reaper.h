#pragma once

#include <filesystem>

#include <sys/types.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// A process that outlives this one by a moment: if this one dies, by SIGKILL
/// even, it kills the process groups it was told of. PR_SET_PDEATHSIG alone
/// ends the workers, but not what they have started themselves.
class OrphanReaper {
 public:
  /// Forks. `temporary` is removed when this process dies (may be empty).
  explicit OrphanReaper(const std::filesystem::path& temporary);
  /// Ends this guard's watch; groups that are not forgotten are killed.
  ~OrphanReaper();
  OrphanReaper(const OrphanReaper&) = delete;
  OrphanReaper& operator=(const OrphanReaper&) = delete;

  /// Watches the process group of the caller: a child that is to execute
  /// something. Only itself can say so before it starts anything.
  void register_self() const;
  /// The groups are gone: their ids may name others from now on.
  void forget() const;

 private:
  void send(pid_t message) const;

  pid_t pid_ = -1;
  base::UniqueFd pipe_;
};

} // namespace weft::launcher
