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
  /// As /proc says it: R runs or could, S sleeps, D sleeps and hears no signal.
  char state = '?';
  /// Where it is and where that returns to, the innermost first.
  std::vector<void*> frames;
  /// Why there are no frames; else empty.
  std::string obstacle;
};

/// Asks all threads of this process but the caller for their stacks, by a
/// real-time signal that nobody else has a handler for; each answers in its own
/// handler, which costs it some microseconds. A thread that has not answered
/// within `limit` is left alone. System calls that wait are restarted, but for
/// those that never are (poll, nanosleep, ...: EINTR; signal(7)). Thread-safe.
std::vector<CapturedThread> capture_threads(std::chrono::milliseconds limit);

/// For a handler of crashes: if this thread crashed because it looked at its
/// stack for capture_threads() (in code whose unwind tables are wrong), goes on
/// there, and the crash has not been; else returns.
void escape_capture();

} // namespace weft::base
