#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mesh/communicator/backend.h"
#include "mesh/communicator/caller.h"
#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::mesh {

class GroupWatch;

/// What all copies of a Communicator and their Works share.
struct GroupState {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<FlightRecorder> flight_recorder =
      std::make_shared<FlightRecorder>();
  /// Who finds out why a collective failed; may be null.
  std::weak_ptr<GroupWatch> watch;
  /// Held while a call is numbered and sent, so that both have one order.
  std::mutex launch_mutex;
  /// Guarded by launch_mutex.
  Callers callers;

  GroupFailure failure() const;
  /// Keeps the first failure and hangs up, so that peers learn of it soon.
  void fail(const GroupFailure& failure);

  /// "rank 1/4, group "tp/0", tensor "wq" [2, 3]".
  ErrorContext describe(const FlightRecorderEntry& call) const;
  [[noreturn]] void throw_failure(
      const FlightRecorderEntry& call,
      const GroupFailure& failure) const;

 private:
  mutable std::mutex mutex_;
  GroupFailure failure_;
};

/// Throws: CommError or DisagreementError if the group has failed, now also on
/// its device.
void check_usable(GroupState& group, const FlightRecorderEntry& call);

using Start = std::function<std::unique_ptr<BackendWork>(Backend&)>;

/// Enters `call` into the ledger, starts it, and has Work::wait() run `finish`
/// once it is over. A group of one leaves no entry.
Work launch(
    const std::shared_ptr<GroupState>& group,
    FlightRecorderEntry call,
    const Start& start,
    std::function<void()> finish = {});

/// One Work for several.
Work combine(std::vector<Work> works);

struct Communicator::State : GroupState {};

} // namespace weft::mesh
