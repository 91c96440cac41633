#pragma once

#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

struct GroupMembers;

/// Observes every collective that its thread, and backward passes started in
/// it, launch while it is installed: each entry of a flight recorder, and the
/// recorder.
class CollectiveObserver : public c10::DebugInfoBase {
 public:
  /// Called on the launching thread before anything is sent. `flight_recorder`
  /// identifies the group; it is Communicator::flight_recorder().
  virtual void launched(
      const GroupMembers& group,
      const FlightRecorder& flight_recorder,
      const FlightRecorderEntry& call) = 0;
};

/// Returns the innermost observer of this thread, or null.
CollectiveObserver* collective_observer();

/// Scope that installs an observer for this thread, in front of the current
/// one.
class CollectiveObserverGuard {
 public:
  explicit CollectiveObserverGuard(
      std::shared_ptr<CollectiveObserver> observer);

 private:
  c10::DebugInfoGuard guard_;
};

} // namespace weft::mesh
