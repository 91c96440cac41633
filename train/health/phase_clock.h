#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mesh/communicator/communicator.h"

namespace weft::recipes {

/// What a rank does in a step.
enum class Phase {
  kData,
  kForward,
  kBackward,
  kOptimizer,
  kEval,
  kCheckpoint,
  kOther
};
inline constexpr size_t kPhases = 7;
/// "data", "forward", ..., "other".
std::string_view name_of(Phase phase);

/// Nanoseconds by phase.
using PhaseTimes = std::array<int64_t, kPhases>;

/// The time in which a rank was busy by itself, by phase: what it waited for
/// others in collectives does not count. For the thread that trains.
class PhaseClock {
 public:
  /// Counts from now on. `groups`: those in which the rank waits.
  explicit PhaseClock(std::vector<mesh::Communicator> groups);

  /// Runs while it lives. Names that are no phase's count as "other"; "clip"
  /// belongs to the optimizer.
  class Span {
   public:
    /// Lifetime: `clock` outlives this; null: nothing is counted.
    Span(PhaseClock* clock, std::string_view phase);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    PhaseClock* clock_;
    Phase phase_;
    int64_t start_ns_;
  };

  /// What was counted since the last time, and what was in no span as "other".
  /// A phase that did not run has 0.
  PhaseTimes take();

 private:
  /// Of a clock that stands still while the rank waits for others.
  int64_t busy_ns() const;

  std::vector<mesh::Communicator> groups_;
  PhaseTimes times_{};
  int64_t last_ns_;
};

} // namespace weft::recipes
