#include "launcher/rendezvous/single_host.h"

#include <utility>

namespace weft::launcher {

void SingleHostRendezvous::ready() {
  rank_assignment_.emplace();
  rank_assignment_->world_size = worker_count_;
  rank_assignment_->restart_count = restart_policy_.count();
  started_ = std::chrono::steady_clock::now();
}

std::optional<RankAssignment> SingleHostRendezvous::take_rank_assignment() {
  return std::exchange(rank_assignment_, std::nullopt);
}

void SingleHostRendezvous::end(const HostResult& end) {
  run_result_.emplace();
  run_result_->code = end.code;
  run_result_->line = end.line;
  if (end.signal == 0) {
    restart_policy_.decide(
        *run_result_,
        std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::steady_clock::now() - started_));
  }
}

std::optional<RunResult> SingleHostRendezvous::take_result() {
  return std::exchange(run_result_, std::nullopt);
}

} // namespace weft::launcher
