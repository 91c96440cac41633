#pragma once

#include <chrono>
#include <vector>

#include "launcher/process/outcome.h"
#include "launcher/process/worker.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Supervises workers that start and end together. Stops them if one fails or
/// if the caller asks for it. A state machine: its caller waits for signals and
/// for time_left(), and then calls advance().
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
  /// Lifetime: `workers` must outlive this object.
  Supervisor(
      const std::vector<Worker>& workers,
      std::chrono::milliseconds shutdown_timeout);

  /// Notes which workers have ended. To be called once at first, because
  /// SIGCHLD may have come before, and after each SIGCHLD.
  void collect_exits();
  /// Forwards a signal that ends the run. Returns false, and does nothing but
  /// for SIGQUIT, which kills, if the workers are already ending.
  bool request_stop(int signal);
  /// Passes a signal on that the workers may handle or not.
  void pass_on(int signal);
  /// Stops the workers because of another host.
  void stop(const StopRequest& request);
  /// Gives the workers the time to end that a stop would give them, without a
  /// signal, if one was passed on that asks them to save and end.
  void await_end();
  /// Goes on as far as the time and the exits allow. Returns true once, when a
  /// worker has failed by itself.
  bool advance();
  /// Returns how long nothing but a signal is to be done. Negative: for ever.
  std::chrono::milliseconds time_left() const;

  /// Returns the exits so far.
  const Outcome& outcome() const { return outcome_; }
  /// Returns true if no worker is running, or those that run cannot be killed.
  bool is_over() const;
  /// Kills the processes that the workers have left behind, and returns what
  /// happened. To be called once, after is_over().
  Outcome finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kRunning, kSettling, kStopping, kKilled };

  bool exited_on_forwarded_signal(const WorkerExit& exit) const;
  void enter(Phase phase, std::chrono::milliseconds duration);
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all();
  void signal_groups(int signal) const;
  bool ended(int rank) const;

  const std::vector<Worker>& workers_;
  std::chrono::milliseconds shutdown_timeout_;
  Phase phase_ = Phase::kRunning;
  Clock::time_point deadline_;
  bool gave_up_ = false;
  /// The last signal that asked the workers to save and end. 0 means none.
  int forwarded_signal_ = 0;
  Outcome outcome_;
};

} // namespace weft::launcher
