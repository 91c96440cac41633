#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/process/rank_assignment.h"

namespace weft::launcher {

/// How a host's workers ended.
struct HostResult {
  /// 0: all of them well, or because they were told to.
  int code = 0;
  /// The signal from outside that ended them, or 0.
  int signal = 0;
  /// Its first failure follows from another: it only lost a connection.
  bool lost_peer = false;
  /// How long ago the failure was seen. Hosts' clocks may differ.
  std::chrono::milliseconds age{0};
  /// `ERROR <code> rank=<r> ...`; empty if the code is 0.
  std::string line;
};

/// What becomes of the run after an attempt, the same on all hosts.
struct RunResult {
  int code = 0;
  std::string line;
  /// Said before the line; may be empty.
  std::string note;
  /// If set, the workers start again after this time.
  std::optional<std::chrono::milliseconds> restart_after;
};

/// Workers are to be stopped, because of what happened on another host.
struct StopRequest {
  /// The signal that another host was sent, or SIGTERM after a failure.
  int signal = 0;
  /// Somebody asked for it.
  bool requested = false;
};

/// The hosts of a run, as one of their launchers sees them: how they start
/// together, and end together. Each attempt goes
/// ready() -> take_rank_assignment() -> end() -> take_result().
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Readable when dispatch() has something to do.
  virtual int fd() const = 0;
  virtual void dispatch() = 0;

  /// Workers may be started. Collective: all hosts, before each attempt.
  virtual void ready() = 0;
  /// Once all hosts are ready.
  virtual std::optional<RankAssignment> take_rank_assignment() = 0;
  /// Where the store of this attempt is served on this host.
  virtual void serve_store(int port) = 0;

  /// A worker of this host has failed; others are to stop.
  virtual void report_failure() = 0;
  /// This launcher was sent a signal that is for the whole run.
  virtual void report_signal(int signal) = 0;
  virtual std::optional<StopRequest> take_stop_request() = 0;

  /// No worker runs on this host any more.
  virtual void end(const HostResult& end) = 0;
  /// Once no host has workers any more; a verdict may also come early, when
  /// the run is over for another reason, and is then the last.
  virtual std::optional<RunResult> take_result() = 0;
};

/// Says a line on standard error.
using LogLine = std::function<void(std::string_view)>;

} // namespace weft::launcher
