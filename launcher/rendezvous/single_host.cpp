#include "launcher/rendezvous/single_host.h"

#include <utility>

namespace weft::launcher {

void OneHost::ready() {
  placement_.emplace();
  placement_->world_size = worker_count_;
  placement_->restart_count = restarts_.count();
  started_ = std::chrono::steady_clock::now();
}

std::optional<Placement> OneHost::take_placement() {
  return std::exchange(placement_, std::nullopt);
}

void OneHost::end(const HostEnd& end) {
  verdict_.emplace();
  verdict_->code = end.code;
  verdict_->line = end.line;
  if (end.signal == 0) {
    restarts_.decide(
        *verdict_,
        std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::steady_clock::now() - started_));
  }
}

std::optional<Verdict> OneHost::take_verdict() {
  return std::exchange(verdict_, std::nullopt);
}

} // namespace weft::launcher
