#pragma once

#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

struct GroupMembers;

/// Learns of every collective that its thread, and the backward passes started
/// in it, launch while it is installed: what enters a ledger, and which one.
class CollectiveObserver : public c10::DebugInfoBase {
 public:
  /// Called on the launching thread, before anything is sent. `flight_recorder`
  /// tells groups apart: it is Communicator::flight_recorder().
  virtual void launched(
      const GroupMembers& group,
      const FlightRecorder& flight_recorder,
      const FlightRecorderEntry& call) = 0;
};

/// The innermost one of this thread, or null.
CollectiveObserver* collective_observer();

/// Installs an observer for this thread, in front of the one that is there.
class CollectiveObserverGuard {
 public:
  explicit CollectiveObserverGuard(
      std::shared_ptr<CollectiveObserver> observer);

 private:
  c10::DebugInfoGuard guard_;
};

} // namespace weft::mesh
