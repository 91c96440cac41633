#include "train/health/phase_clock.h"

#include <algorithm>
#include <numeric>

#include "mesh/communicator/flight_recorder.h"
#include "train/trace/trace_recorder.h"

namespace weft::train {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames =
    {"data", "forward", "backward", "optimizer", "eval", "checkpoint", "other"};

Phase phase_of(std::string_view name) {
  if (name == "clip") {
    return Phase::kOptimizer;
  }
  const auto found = std::ranges::find(kPhaseNames, name);
  return found == kPhaseNames.end()
             ? Phase::kOther
             : static_cast<Phase>(found - kPhaseNames.begin());
}

} // namespace

std::string_view name_of(Phase phase) {
  return kPhaseNames.at(static_cast<size_t>(phase));
}

PhaseClock::PhaseClock(std::vector<mesh::Communicator> groups)
    : groups_(std::move(groups)), last_ns_(busy_ns()) {}

int64_t PhaseClock::busy_ns() const {
  int64_t now = monotonic_ns();
  for (const auto& group : groups_) {
    now -= group.flight_recorder().blocked_ns();
  }
  return now;
}

PhaseClock::Span::Span(PhaseClock* clock, std::string_view phase)
    : clock_(clock),
      phase_(phase_of(phase)),
      start_ns_(clock ? clock->busy_ns() : 0) {}

PhaseClock::Span::~Span() {
  if (clock_) {
    clock_->times_[static_cast<size_t>(phase_)] +=
        clock_->busy_ns() - start_ns_;
  }
}

PhaseTimes PhaseClock::take() {
  const auto now = busy_ns();
  auto times = times_;
  const auto in_spans = std::accumulate(times.begin(), times.end(), int64_t{0});
  times[static_cast<size_t>(Phase::kOther)] +=
      std::max<int64_t>(now - last_ns_ - in_spans, 0);
  times_.fill(0);
  last_ns_ = now;
  return times;
}

} // namespace weft::train
