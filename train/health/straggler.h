#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "mesh/device_mesh.h"
#include "train/health/phase_clock.h"

namespace weft::recipes {

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

/// One rank is slow, or is so no longer.
struct StragglerEvent {
  int64_t rank = 0;
  bool is_slow = false;
  /// Where it loses most of the time, and what it and the others need there,
  /// milliseconds a step.
  Phase phase = Phase::kOther;
  double own_ms = 0;
  double others_ms = 0;
  /// What the others wait for it, milliseconds a step.
  double cost_ms = 0;
};

/// Finds ranks that are persistently slow. See Note [Stragglers].
class StragglerDetector {
 public:
  static constexpr int64_t kRounds = 4;

  /// The next round: by rank, nanoseconds a step by phase; 0: a phase that did
  /// not run. The same number of ranks each time.
  std::vector<StragglerEvent> add_round(const std::vector<PhaseTimes>& ranks);

 private:
  struct Rank {
    /// Of the last rounds, in milliseconds: the sum's distance to the others',
    /// and the phases'.
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
  /// How much distances to the mean changed from one round to the next.
  std::vector<double> changes_;
};

/// "rank 2 is slow: ...", one line. `steps`: of the rounds that it is about.
std::string
describe(const StragglerEvent& event, int64_t steps, double step_ms);

/// Compares how fast the ranks of a run are, and tells the user.
class StragglerMonitor {
 public:
  /// A line for the user; called on world rank 0 only.
  using LogLine = std::function<void(const std::string&)>;

  StragglerMonitor(
      const Recipe& recipe,
      const mesh::DeviceMesh& mesh,
      LogLine log_line);

  /// Where the phases of steps are to be counted; null where nothing is
  /// compared: on one rank, on a device, whose work the host does not time, and
  /// with `straggler_detection.every: 0`.
  PhaseClock* clock() { return clock_ ? &*clock_ : nullptr; }

  /// After each step and all that belongs to it. Every few of them 56 bytes a
  /// rank travel.
  /// Collective: all ranks of the mesh; blocks.
  void step_done();

 private:
  PhaseTimes round_median() const;

  mesh::DeviceMesh mesh_;
  int64_t every_;
  LogLine log_line_;
  std::optional<PhaseClock> clock_;
  StragglerDetector detector_;
  std::vector<PhaseTimes> steps_;
  int64_t round_start_ns_ = 0;
};

} // namespace weft::recipes
