#pragma once

#include <cstdint>

#include "lighthouse/messages.h"

namespace weft::lighthouse {

/// The part of a replica group in the protocol: what it has promised to the
/// lighthouse, its epoch, and the commits of its state. A pure state machine.
/// See Note [One lineage].
class Member {
 public:
  /// `lease` is that of the lighthouse.
  Member(GroupId group, Time lease, Time now);

  /// Returns what to send to the lighthouse, at least four times in the time
  /// after which it suspects a group, and after every change of phase() and
  /// ballot().
  Report report(Time now);
  void receive(const Reply& reply, Time now);

  enum class Phase {
    /// In no epoch.
    kOutside,
    /// To meet the other groups of epoch(); then enter().
    kMeeting,
    /// Has met the others and needs the state epoch().base from one of them, or
    /// from the newest checkpoint; then take_state().
    kWithoutState,
    /// Has the state applied() and can do the next step.
    kTraining,
  };
  Phase phase() const { return phase_; }
  /// The ballot of the newest lighthouse that was heard of. 0: of none.
  uint64_t ballot() const { return ballot_; }
  const Epoch& epoch() const { return epoch_; }
  const Commit& applied() const { return applied_; }
  /// The newest commit that outputs and checkpoints may contain.
  const Commit& acknowledged() const { return acknowledged_; }
  /// Whether the group is to leave after the step that is running.
  bool leaves_after_step() const { return leaves_after_step_; }

  /// Says that all groups of the epoch have met. Applies a prepared step if the
  /// epoch begins after it; `applies` tells whether the gradients of that step
  /// are to be applied now. Returns false, and leaves the epoch, if the group
  /// is held.
  bool enter(Time now, bool& applies);
  /// Says that the group has loaded the state of epoch().base, or that of a
  /// checkpoint of `checkpoint_step` if the epoch begins from one.
  void take_state(int64_t checkpoint_step = 0);
  /// Says that the gradients of the next step are complete. From then on the
  /// others may apply it. Returns its commit.
  const Commit& prepare();
  /// Says that all groups are prepared. Returns true if the step is to be
  /// applied now; otherwise the group is held, and leaves.
  bool commit(Time now);
  /// Leaves the epoch for good, for example because a collective has failed.
  void leave();
  /// Says that the group has done all its steps.
  void finish() { has_finished_ = true; }

 private:
  bool is_in_lease(Time now) const;

  GroupId group_;
  Time lease_;
  Time answered_;
  bool is_held_ = false;
  bool has_finished_ = false;
  uint64_t ballot_ = 0;
  Epoch epoch_;
  Phase phase_ = Phase::kOutside;
  bool is_of_epoch_ = false;
  bool leaves_after_step_ = false;
  Commit applied_;
  Commit prepared_;
  Commit acknowledged_;
};

} // namespace weft::lighthouse
