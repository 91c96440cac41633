#include "launcher/outcome.h"

#include <algorithm>
#include <tuple>

#include <signal.h>

namespace weft::launcher {

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
  const auto first = std::ranges::min(failures, {}, &WorkerExit::seen).seen;
  std::erase_if(failures, [&](const WorkerExit& exit) {
    return exit.seen > first + kCauseWindow;
  });
  return std::ranges::min(failures, {}, [](const WorkerExit& exit) {
    return std::tuple(
        exit.code == kPeerLost, exit.seen, exit.signal == 0, exit.rank);
  });
}

int exit_code(const Outcome& outcome) {
  if (outcome.requested_signal == 0) {
    const auto cause = root_cause(outcome);
    return cause ? cause->code : 0;
  }
  const auto& exits = outcome.exits;
  const bool alike = !exits.empty() && outcome.stuck.empty() &&
                     std::ranges::all_of(exits, [&](const WorkerExit& exit) {
                       return exit.code == exits.front().code;
                     });
  return alike ? exits.front().code : 128 + outcome.requested_signal;
}

} // namespace weft::launcher
