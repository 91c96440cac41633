#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <signal.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// Signal numbers of a list such as "SIGTERM,SIGINT".
/// Throws: LaunchError naming the part that is no signal, or cannot be caught.
std::vector<int> parse_signals(std::string_view text);

/// "SIGKILL" for 9.
std::string signal_name(int signal);

/// Turns signals into a readable descriptor while it lives: SIGCHLD, those that
/// end the run, and those that are only passed on to the workers, SIGUSR1 and
/// SIGUSR2 where they are not among the former.
class SignalQueue {
 public:
  /// `handled` end the run. A SIGHUP that is ignored already, as under nohup,
  /// stays ignored.
  explicit SignalQueue(const std::vector<int>& handled);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  /// The signals that have come since the last call.
  std::vector<int> take();
  /// Whether workers are to get it, and nothing else is to happen.
  bool is_forwarded_only(int signal) const;
  /// Whether it ends the run.
  bool is_termination_request(int signal) const;
  /// In a forked child: defaults and the mask from before.
  void restore() const;

 private:
  std::vector<int> handled_;
  std::vector<int> forwarded_signals_;
  sigset_t old_mask_;
  base::UniqueFd fd_;
};

} // namespace weft::launcher
