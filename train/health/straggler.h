#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "train/health/phase_clock.h"

namespace weft::train {

// Note [Stragglers]
// ~~~~~~~~~~~~~~~~~
// Ranks wait for each other in every step, so the step is as long as the
// slowest rank's own work, and all ranks' steps look alike. What tells them
// apart is the time that each was busy by itself. Every few steps (a round)
// ranks exchange, phase by phase, the median of these. A rank is behind in a
// round if its sum over the phases is more than a margin above the lower median
// over the ranks (so of two the slower one, and of four two that are). The
// margin is six times what a rank's distance to the mean typically changes from
// one round to the next, but at least a tenth and at most three tenths. A rank
// that is behind in three of four rounds, and by half of the margin in the
// other, is slow; one that is not by half of it in four in a row is so no
// longer.

/// The report that a rank has become a straggler, or is none any more.
struct StragglerEvent {
  int64_t rank = 0;
  bool is_slow = false;
  /// The phase in which the rank loses most of the time, and the times of this
  /// rank and of its peers in that phase.
  /// Unit: milliseconds per step.
  Phase phase = Phase::kOther;
  double own_ms = 0;
  double others_ms = 0;
  /// The time for which its peers wait for the rank.
  /// Unit: milliseconds per step.
  double cost_ms = 0;
};

/// Detects ranks that are persistently slow. See Note [Stragglers].
class StragglerDetector {
 public:
  static constexpr int64_t kRounds = 4;

  /// Adds the next round and returns the ranks whose state changed. `ranks` has
  /// the nanoseconds per step by phase for each rank. 0 means that the phase
  /// did not run. The number of ranks must be the same in each call.
  std::vector<StragglerEvent> add_round(const std::vector<PhaseTimes>& ranks);

 private:
  struct Rank {
    /// The last rounds in milliseconds: the difference between the rank's sum
    /// and the median of all ranks, followed by the times by phase.
    std::vector<double> behind;
    std::vector<std::array<double, kPhases>> own;
    std::vector<std::array<double, kPhases>> others;
    double from_mean = 0;
    int64_t fast_rounds = 0;
    bool is_slow = false;
  };

  double noise_ms() const;
  StragglerEvent describe(size_t rank) const;

  std::vector<Rank> ranks_;
  /// The changes of the distance to the mean from one round to the next.
  std::vector<double> changes_;
};

/// Describes an event in one line: "rank 2 is slow: ...". `steps` is the number
/// of steps of the rounds that the event is based on.
std::string
describe(const StragglerEvent& event, int64_t steps, double step_ms);

/// Compares the speed of the ranks of a run and reports stragglers to the user.
class StragglerMonitor {
 public:
  StragglerMonitor(
      const config::Recipe& recipe,
      const mesh::DeviceMesh& mesh,
      base::Logger log);

  /// Returns the clock that counts the phases of steps. Null if nothing is
  /// compared: on one rank, on a CUDA device, whose work the host does not
  /// time, and with `straggler_detection.every: 0`.
  PhaseClock* clock() { return clock_ ? &*clock_ : nullptr; }

  /// To be called after each step, including its evaluation and checkpoint.
  /// Gathers 56 bytes per rank every `straggler_detection.every` steps.
  /// Collective: all ranks of the mesh; blocks.
  void step_done();

 private:
  PhaseTimes round_median() const;

  mesh::DeviceMesh mesh_;
  int64_t every_;
  base::Logger log_;
  std::optional<PhaseClock> clock_;
  StragglerDetector detector_;
  std::vector<PhaseTimes> steps_;
  int64_t round_start_ns_ = 0;
};

} // namespace weft::train
