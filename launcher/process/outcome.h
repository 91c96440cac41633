#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/exit_code.h"
#include "launcher/process/error_file.h"

namespace weft::launcher {

/// Exit code of a process that lost a peer or timed out. root_cause() prefers
/// other failures.
constexpr int kPeerLost = static_cast<int>(base::ExitCode::kPeerLost);
/// Exit code of a process that was asked to end and has ended in order.
constexpr int kPreempted = static_cast<int>(base::ExitCode::kPreempted);
/// Exit code for out of memory, equal to that of a process killed by the
/// kernel's OOM killer.
constexpr int kNoMemory = static_cast<int>(base::ExitCode::kOutOfMemory);
/// The time after the first failure within which another failure may be its
/// cause.
constexpr std::chrono::milliseconds kCauseWindow{200};

/// The cause of a failure, if more is known than its code and signal.
enum class FailureCause {
  kNone,
  /// A consequence of another failure: a connection was lost.
  kLostPeer,
  /// A wait for another rank has timed out. A connection that was lost then is
  /// a consequence.
  kTimedOut,
  /// The kernel's OOM killer killed the process.
  kOutOfMemory,
  /// An allocation failed, and the error was not handled.
  kBadAlloc,
  /// SIGKILL, but not from the kernel's OOM killer.
  kSigkillSourceUnknown
};

/// The exit of a worker.
struct WorkerExit {
  int rank = 0;
  pid_t pid = -1;
  /// The exit code as in a shell: 128 + signal for a signal.
  int code = 0;
  /// The signal, or 0 if the worker exited by itself.
  int signal = 0;
  /// The time at which the exit was detected. Exits that are detected together
  /// have the same time.
  std::chrono::steady_clock::time_point seen;
  std::chrono::system_clock::time_point when;
  /// True if the worker ended after all workers were asked to stop.
  bool stopped = false;
  /// The name of the worker's host. Empty means this host.
  std::string host = {};
  /// The error file of the worker.
  ErrorFile error = {};
  FailureCause failure_cause = FailureCause::kNone;
  /// The peak memory of the worker, and its memory limit. 0 means unknown.
  int64_t peak_rss_bytes = 0;
  int64_t memory_limit_bytes = 0;
};

/// Returns the time that the worker reported or, without one, the time at which
/// its exit was detected.
std::chrono::system_clock::time_point failure_time(const WorkerExit& exit);

/// The outcome of the workers of this host.
struct Outcome {
  /// The exits, in the order in which they were detected.
  std::vector<WorkerExit> exits;
  /// The signal from outside that ended the run, or 0.
  int requested_signal = 0;
  /// True if some workers were killed because they did not end in time.
  bool killed = false;
  /// The ranks that did not end even after SIGKILL. Only set after a failure or
  /// a signal.
  std::vector<int> stuck;
};

/// Returns the failure that caused the others: the first one by failure_time(),
/// except that within kCauseWindow a timeout takes precedence over a lost peer,
/// and any other failure over both. Empty if no worker failed by itself.
std::optional<WorkerExit> root_cause(const Outcome& outcome);

/// Returns the base::FailureLine of a failure that weftrun itself describes.
std::string failure_line(int code, std::string text, int64_t rank = 0);

/// Returns true if weftrun ended the worker.
bool was_stopped_by_launcher(const WorkerExit& exit);

/// Returns true if the failure is a consequence of another one.
bool is_peer_loss(const WorkerExit& exit);

/// Returns 128 + the signal that ended the run, but 143 for SIGUSR1, which
/// requests the same as SIGTERM.
int exit_code_of_signal(int signal);

/// Returns the launcher's exit code: 0 if all workers exited with 0, otherwise
/// the code of `cause`, which is root_cause(outcome), or 137 if it ran out of
/// memory. After a signal from outside: the code that all workers share, but
/// exit_code_of_signal() if their codes differ or a worker died of that signal.
int exit_code(const Outcome& outcome, const std::optional<WorkerExit>& cause);

} // namespace weft::launcher
