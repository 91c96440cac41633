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

/// The state that all copies of a Communicator and its Works share.
struct GroupState {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<FlightRecorder> flight_recorder =
      std::make_shared<FlightRecorder>();
  /// Finds out why a collective failed. May be null.
  std::weak_ptr<GroupWatch> watch;
  /// Held while a call is numbered and sent, so that both have the same order.
  std::mutex launch_mutex;
  /// Guarded by launch_mutex.
  Callers callers;

  GroupFailure failure() const;
  /// Keeps the first failure and closes the connections, so that peers detect
  /// it soon.
  void fail(const GroupFailure& failure);

  /// Returns the context of an error: "rank 1/4, group "tp/0", tensor "wq" [2,
  /// 3]".
  ErrorContext describe(const FlightRecorderEntry& call) const;
  [[noreturn]] void throw_failure(
      const FlightRecorderEntry& call,
      const GroupFailure& failure) const;

 private:
  mutable std::mutex mutex_;
  GroupFailure failure_;
};

/// Throws: CommError or DisagreementError if the group has failed, or fails now
/// on its device.
void check_usable(GroupState& group, const FlightRecorderEntry& call);

using Start = std::function<std::unique_ptr<BackendWork>(Backend&)>;

/// Records `call` in the flight recorder, starts it, and makes Work::wait() run
/// `finish` after completion. A group of one rank records nothing.
Work launch(
    const std::shared_ptr<GroupState>& group,
    FlightRecorderEntry call,
    const Start& start,
    std::function<void()> finish = {});

/// Combines several Works into one.
Work combine(std::vector<Work> works);

struct Communicator::State : GroupState {};

} // namespace weft::mesh
