#pragma once

#include <memory>
#include <string>

#include "mesh/error/failure.h"

namespace weft::mesh {

struct GroupState;

/// Supervises the groups of one rank and finds out why their collectives fail.
/// Watchdog (mesh/watchdog/watchdog.h) implements it. Thread-safe.
class GroupWatch {
 public:
  virtual ~GroupWatch() = default;

  /// Starts the supervision of `group`. All its members use the same `key`.
  virtual void add(
      const std::string& key,
      const std::shared_ptr<GroupState>& group) = 0;

  /// Publishes to all ranks why no collective of the world can complete, as
  /// detected by this rank. Returns the failure that was published first.
  virtual GroupFailure publish_failure(const GroupFailure& failure) = 0;

  /// Returns the cause of a failed collective if the ranks can determine it
  /// within 2 s. Otherwise returns `failure` with what is known of the other
  /// ranks.
  virtual GroupFailure explain(const GroupFailure& failure) = 0;
};

} // namespace weft::mesh
