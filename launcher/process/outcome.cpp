#include "launcher/process/outcome.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <signal.h>

#include "base/failure_line.h"

namespace weft::launcher {

namespace {

using std::chrono::nanoseconds;
using std::chrono::system_clock;

int code_of(const WorkerExit& exit) {
  const bool no_memory = exit.failure_cause == FailureCause::kOutOfMemory ||
                         exit.failure_cause == FailureCause::kBadAlloc;
  return no_memory ? kNoMemory : exit.code;
}

} // namespace

std::string failure_line(int code, std::string text, int64_t rank) {
  return base::FailureLine{
      .code = code, .rank = rank, .op = "launch", .text = std::move(text)}
      .to_string();
}

bool was_stopped_by_launcher(const WorkerExit& exit) {
  return exit.stopped && (!exit.error.time_ns || exit.code == 128 + SIGTERM ||
                          exit.code == 128 + SIGKILL);
}

system_clock::time_point failure_time(const WorkerExit& exit) {
  return exit.error.time_ns
             ? system_clock::time_point(
                   std::chrono::duration_cast<system_clock::duration>(
                       nanoseconds(*exit.error.time_ns)))
             : exit.when;
}

bool is_peer_loss(const WorkerExit& exit) {
  return exit.code == kPeerLost ||
         exit.failure_cause == FailureCause::kLostPeer;
}

std::optional<WorkerExit> root_cause(const Outcome& outcome) {
  std::vector<WorkerExit> failures;
  for (const auto& exit : outcome.exits) {
    if (exit.code != 0 && !exit.stopped) {
      failures.push_back(exit);
    }
  }
  if (failures.empty()) {
    return std::nullopt;
  }
  const auto latest =
      std::ranges::min(failures, {}, &WorkerExit::when).when + kCauseWindow;
  // A worker that failed before weftrun stopped the others may have ended late,
  // so it counts as a failure, too.
  for (const auto& exit : outcome.exits) {
    if (exit.code != 0 && exit.stopped && !was_stopped_by_launcher(exit)) {
      failures.push_back(exit);
    }
  }
  // A worker cannot fail after its exit was seen. If its time is later, the
  // clock was set back in between.
  std::erase_if(failures, [&](const WorkerExit& exit) {
    return std::min(failure_time(exit), exit.when) > latest;
  });
  return std::ranges::min(failures, {}, [](const WorkerExit& exit) {
    return std::tuple(
        is_peer_loss(exit),
        exit.failure_cause != FailureCause::kTimedOut,
        failure_time(exit),
        exit.signal == 0,
        exit.rank);
  });
}

int exit_code_of_signal(int signal) {
  return signal == SIGUSR1 ? kPreempted : 128 + signal;
}

int exit_code(const Outcome& outcome, const std::optional<WorkerExit>& cause) {
  if (outcome.requested_signal == 0) {
    return cause ? code_of(*cause) : 0;
  }
  const auto& exits = outcome.exits;
  const bool alike = !exits.empty() && outcome.stuck.empty() &&
                     std::ranges::all_of(exits, [&](const WorkerExit& exit) {
                       return exit.code == exits.front().code &&
                              exit.signal != outcome.requested_signal;
                     });
  return alike ? exits.front().code
               : exit_code_of_signal(outcome.requested_signal);
}

} // namespace weft::launcher
