#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <signal.h>

#include "launcher/unique_fd.h"

namespace weft::launcher {

/// Signal numbers of a list such as "SIGTERM,SIGINT".
/// Throws: LaunchError naming the part that is no signal, or cannot be caught.
std::vector<int> parse_signals(std::string_view text);

/// "SIGKILL" for 9.
std::string signal_name(int signal);

/// Turns signals, SIGCHLD too, into a readable descriptor while it lives.
class SignalQueue {
 public:
  /// A SIGHUP that is ignored already, as under nohup, stays ignored.
  explicit SignalQueue(const std::vector<int>& handled);
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  /// The signals that have come since the last call.
  std::vector<int> take();
  /// In a forked child: defaults and the mask from before.
  void restore() const;

 private:
  std::vector<int> handled_;
  sigset_t old_mask_;
  UniqueFd fd_;
};

} // namespace weft::launcher
