#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include <sys/types.h>

namespace weft::launcher {

/// A process that lost a peer or ran into a timeout ends with this code: it is
/// seldom the cause of anything.
constexpr int kPeerLost = 150;
/// Failures this close to the first one may be its cause.
constexpr std::chrono::milliseconds kCauseWindow{200};

/// How a worker ended.
struct WorkerExit {
  int rank = 0;
  pid_t pid = -1;
  /// As a shell gives it: 128 + signal for a signal.
  int code = 0;
  /// 0 if it exited by itself.
  int signal = 0;
  /// When it was seen. Exits seen at once share it.
  std::chrono::steady_clock::time_point seen;
  std::chrono::system_clock::time_point when;
  /// It ended after all workers were told to.
  bool stopped = false;
};

/// How the run ended.
struct Outcome {
  /// In the order in which they were seen.
  std::vector<WorkerExit> exits;
  /// The signal that ended the run from outside, or 0.
  int requested_signal = 0;
  /// Some workers had to be killed after the time they had to end.
  bool killed = false;
  /// Ranks that did not end even then: only ever after a failure or a signal.
  std::vector<int> stuck;
};

/// The failure that the others follow from: the first one, but an exit that
/// says "peer lost" gives way to any other failure within kCauseWindow.
/// Nothing if no worker failed by itself.
std::optional<WorkerExit> root_cause(const Outcome& outcome);

/// The launcher's exit code: 0 if all workers exited 0, else the root cause's
/// code; after a signal from outside the code that all workers share, else
/// 128 + that signal.
int exit_code(const Outcome& outcome);

} // namespace weft::launcher
