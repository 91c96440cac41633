#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <sys/types.h>

namespace weft::base {

/// A thread of this process at one moment.
struct CapturedThread {
  pid_t id = 0;
  std::string name;
  /// The state in /proc: R is running or runnable, S is sleeping, D is in
  /// uninterruptible sleep.
  char state = '?';
  /// The program counter and return addresses, innermost first.
  std::vector<void*> frames;
  /// The reason why there are no frames. Otherwise empty.
  std::string obstacle;
};

/// Captures the stacks of all other threads of this process. It uses a
/// real-time signal without another handler; each thread answers in the
/// handler, which takes some microseconds. A thread that does not answer within
/// `limit` is skipped. Interrupted system calls are restarted, except those
/// that never are (poll, nanosleep, ...: EINTR; signal(7)). Thread-safe.
std::vector<CapturedThread> capture_threads(std::chrono::milliseconds limit);

/// For a crash handler: if this thread crashed while it read its own stack for
/// capture_threads() (in code with wrong unwind tables), continues there and
/// does not return. Otherwise returns.
void escape_capture();

} // namespace weft::base
