#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "mesh/communicator/communicator.h"

namespace weft::train {

/// The phase of a step that a rank is in.
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
/// Returns "data", "forward", ..., "other".
std::string_view name_of(Phase phase);

/// Times in nanoseconds by phase.
using PhaseTimes = std::array<int64_t, kPhases>;

/// Measures a rank's own work by phase. The time that it waits for peers in
/// collectives does not count. Used by the training thread.
class PhaseClock {
 public:
  /// Starts counting. `groups` are the groups whose collectives the rank waits
  /// for.
  explicit PhaseClock(std::vector<mesh::Communicator> groups);

  /// A scope whose time counts for a phase. "clip" counts as "optimizer";
  /// unknown names count as "other".
  class Span {
   public:
    /// If `clock` is null, nothing is counted.
    /// Lifetime: `clock` must outlive this.
    Span(PhaseClock* clock, std::string_view phase);
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    PhaseClock* clock_;
    Phase phase_;
    int64_t start_ns_;
  };

  /// Returns the times since the last call. Time outside of all spans counts as
  /// "other". A phase that did not run has 0.
  PhaseTimes take();

 private:
  /// The time of a clock that stops while the rank waits for peers.
  int64_t busy_ns() const;

  std::vector<mesh::Communicator> groups_;
  PhaseTimes times_{};
  int64_t last_ns_;
};

} // namespace weft::train
