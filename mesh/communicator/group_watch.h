#pragma once

#include <memory>
#include <string>

#include "mesh/error/failure.h"

namespace weft::mesh {

struct GroupState;

/// Looks after one rank's groups and finds out why their collectives fail. The
/// watchdog is one (mesh/watchdog/watchdog.h). Thread-safe.
class GroupWatch {
 public:
  virtual ~GroupWatch() = default;

  /// From now on `group`, which all its members know as `key`, is looked at.
  virtual void add(
      const std::string& key,
      const std::shared_ptr<GroupState>& group) = 0;

  /// Tells all ranks why no collective of the world will end, as this one
  /// found out by itself. Returns what counts, if another rank has told
  /// something before.
  virtual GroupFailure publish_failure(const GroupFailure& failure) = 0;

  /// Returns why a collective has really failed, if the ranks can find out in
  /// at most two seconds, else `failure` with what is known of the others.
  virtual GroupFailure explain(const GroupFailure& failure) = 0;
};

} // namespace weft::mesh
