#pragma once

#include <chrono>
#include <vector>

#include "launcher/output/output.h"
#include "launcher/process/outcome.h"
#include "launcher/process/signals.h"
#include "launcher/process/worker.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Watches the workers of an attempt until all have ended, and ends them when
/// one fails, here or on another host, or a signal asks for it.
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
  /// Lifetime: the arguments outlive this object.
  Supervisor(
      const std::vector<Worker>& workers,
      Output& output,
      SignalQueue& signals,
      Rendezvous& hosts,
      std::chrono::milliseconds shutdown_timeout);

  /// `wake_fd` is readable when signals or hosts have something to say.
  /// Returns when no worker runs any more and their process groups are gone.
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
  /// The last of the signals that ask workers to save and end; 0: none.
  int forwarded_signal_ = 0;
  Outcome outcome_;
};

} // namespace weft::launcher
