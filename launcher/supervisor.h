#pragma once

#include <chrono>
#include <vector>

#include "launcher/output/output.h"
#include "launcher/process/outcome.h"
#include "launcher/process/signals.h"
#include "launcher/process/worker.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Supervises the workers of an attempt until all have ended. Stops them if one
/// fails, here or on another host, or if a signal requests it.
//
//            a worker fails            kCauseWindow
//   Running ----------------> Settling ------------> Stopping
//      |                                 SIGTERM        |
//      +------------------------------------------------+ its time is over,
//            a signal comes: it is forwarded,           | or SIGQUIT
//            or a worker obeys one that was passed on   |
//                                                       v SIGKILL
//   from each state: all workers ended -> done        Killed
class Supervisor {
 public:
  /// Lifetime: the arguments must outlive this object.
  Supervisor(
      const std::vector<Worker>& workers,
      Output& output,
      SignalQueue& signals,
      Rendezvous& hosts,
      std::chrono::milliseconds shutdown_timeout);

  /// `wake_fd` is readable when a signal or a message of a host has arrived.
  /// Returns when no worker is running any more and their process groups are
  /// gone.
  Outcome run(int wake_fd);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kRunning, kSettling, kStopping, kKilled };

  std::chrono::milliseconds time_left() const;
  void handle_signals();
  void handle_request(int signal);
  void forward_signal(int signal);
  bool exited_on_forwarded_signal(const WorkerExit& exit) const;
  void handle_stop_request(const StopRequest& order);
  void collect_exits();
  void advance();
  void enter(Phase phase, std::chrono::milliseconds duration);
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all();
  void signal_groups(int signal) const;
  bool ended(int rank) const;

  const std::vector<Worker>& workers_;
  Output& output_;
  SignalQueue& signals_;
  Rendezvous& rendezvous_;
  std::chrono::milliseconds shutdown_timeout_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_;
  bool gave_up_ = false;
  /// The last signal that asked the workers to save and end. 0 means none.
  int forwarded_signal_ = 0;
  Outcome outcome_;
};

} // namespace weft::launcher
