#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <signal.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// Parses a list of signals such as "SIGTERM,SIGINT".
/// Throws: LaunchError naming the part if it is not a signal or cannot be
/// caught.
std::vector<int> parse_signals(std::string_view text);

/// Returns "SIGKILL" for 9.
std::string signal_name(int signal);

/// Receives signals through a readable descriptor during its lifetime: SIGCHLD,
/// the signals that end the run, and the signals that are only forwarded to the
/// workers. The latter are SIGUSR1 and SIGUSR2, unless they end the run.
class SignalQueue {
 public:
  /// `handled` are the signals that end the run. A SIGHUP that is already
  /// ignored, as under nohup, stays ignored.
  explicit SignalQueue(const std::vector<int>& handled);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  /// Returns the signals that arrived since the last call.
  std::vector<int> take();
  /// Returns true if the signal is only forwarded to the workers.
  bool is_forwarded_only(int signal) const;
  /// Returns true if the signal ends the run.
  bool is_termination_request(int signal) const;
  /// Restores default handlers and the previous mask in a forked child, in
  /// which the signals of this object are unblocked.
  void restore() const;

 private:
  std::vector<int> handled_;
  std::vector<int> forwarded_signals_;
  sigset_t old_mask_;
  base::UniqueFd fd_;
};

} // namespace weft::launcher
