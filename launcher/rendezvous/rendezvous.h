#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/process/rank_assignment.h"

namespace weft::launcher {

/// The result of one host's workers.
struct HostResult {
  /// The exit code. 0 means that all workers succeeded or were stopped.
  int code = 0;
  /// The signal from outside that ended the workers, or 0.
  int signal = 0;
  /// True if the host's first failure is a consequence of another one: it only
  /// lost a connection.
  bool lost_peer = false;
  /// The age of the failure. It is relative because the hosts' clocks may
  /// differ.
  std::chrono::milliseconds age{0};
  /// The line `ERROR <code> rank=<r> ...`. Empty if the code is 0.
  std::string line;
};

/// The result of an attempt, identical on all hosts.
struct RunResult {
  int code = 0;
  std::string line;
  /// A text to print next to the line. May be empty.
  std::string note;
  /// The delay after which the workers start again. If it is not set, the run
  /// is over.
  std::optional<std::chrono::milliseconds> restart_after;
};

/// A request to stop the workers because of an event on another host.
struct StopRequest {
  /// The signal that another host received, or SIGTERM after a failure.
  int signal = 0;
  /// True if a signal requested the stop, false if a failure did.
  bool requested = false;
};

/// The rendezvous of the hosts of a run, as seen by one launcher. It starts and
/// ends their workers together. Each attempt calls ready() ->
/// take_rank_assignment() -> end() -> take_result().
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// A descriptor that is readable when dispatch() has work to do.
  virtual int fd() const = 0;
  virtual void dispatch() = 0;

  /// Announces that this host can start its workers.
  /// Collective: all hosts, before each attempt.
  virtual void ready() = 0;
  /// Returns the assignment after all hosts are ready, once. Empty otherwise.
  virtual std::optional<RankAssignment> take_rank_assignment() = 0;
  /// Sets the port at which this host serves the store of this attempt.
  virtual void serve_store(int port) = 0;

  /// Reports that a worker of this host has failed, so that the other workers
  /// are stopped.
  virtual void report_failure() = 0;
  /// Reports that this launcher received a signal for the entire run.
  virtual void report_signal(int signal) = 0;
  virtual std::optional<StopRequest> take_stop_request() = 0;

  /// Reports that no worker is running on this host any more.
  virtual void end(const HostResult& end) = 0;
  /// Returns the result after no host has running workers any more. A result
  /// may come earlier if the run ends for another reason; it is then the last
  /// one.
  virtual std::optional<RunResult> take_result() = 0;
};

} // namespace weft::launcher
