#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/exit_code.h"

namespace weft::launcher {

/// A process that lost a peer or ran into a timeout ends with this code: it is
/// seldom the cause of anything.
constexpr int kPeerLost = static_cast<int>(base::ExitCode::kPeerLost);
/// A process that was told to end, and has ended in order, says so with this.
constexpr int kPreempted = static_cast<int>(base::ExitCode::kPreempted);
/// As of a process that the kernel kills for its memory.
constexpr int kNoMemory = static_cast<int>(base::ExitCode::kOutOfMemory);
/// Failures this close to the first one may be its cause.
constexpr std::chrono::milliseconds kCauseWindow{200};

/// What a failure is, where that is known beyond its code and signal.
enum class FailureCause {
  kNone,
  /// It is another failure's consequence: a connection was lost.
  kLostPeer,
  /// The kernel killed it for the memory it used.
  kOutOfMemory,
  /// An allocation failed, and nobody dealt with it.
  kBadAlloc,
  /// It was killed, and not by the kernel for its memory.
  kSigkillSourceUnknown
};

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
  /// Its host's name; empty: this one.
  std::string host = {};
  /// When it failed, by its own account. Units: nanoseconds since the epoch.
  std::optional<int64_t> failed_at_ns = {};
  FailureCause failure_cause = FailureCause::kNone;
  /// The most memory it had, and what it might have; 0: not known.
  int64_t peak_rss_bytes = 0;
  int64_t memory_limit_bytes = 0;
};

/// By its own account or, without one, when it was seen to have ended.
std::chrono::system_clock::time_point failure_time(const WorkerExit& exit);

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

/// The failure that the others follow from: the first one by failure_time(),
/// but a lost peer gives way to any other failure within kCauseWindow. Nothing
/// if no worker failed by itself.
std::optional<WorkerExit> root_cause(const Outcome& outcome);

/// Whether it ended because weftrun ended it, and not by itself.
bool was_stopped_by_launcher(const WorkerExit& exit);

/// Whether it is another failure's consequence.
bool is_peer_loss(const WorkerExit& exit);

/// 128 + a signal that ended the run; 143 for SIGUSR1, which asks for the same
/// as SIGTERM.
int exit_code_of_signal(int signal);

/// The launcher's exit code: 0 if all workers exited 0, else the root cause's
/// code, 137 if it ran out of memory; after a signal from outside the code that
/// all workers share, else, or if they died of that signal,
/// exit_code_of_signal().
int exit_code(const Outcome& outcome);

} // namespace weft::launcher
