#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::lighthouse {

// Note [One lineage]
// ~~~~~~~~~~~~~~~~~~
// Replica groups train together in an epoch: a fixed list of groups and the
// commit from which they go on. A step is committed in two rounds among the
// groups. When a group has all gradients it is prepared and tells the others;
// when all have told it, it applies the step. So if one group applied a step,
// all groups of the epoch are prepared for it, and a group that leaves before
// it is prepared keeps all others from applying the step.
//
// When a group is lost, the others leave the epoch and report to the
// lighthouse, which makes the next one:
// - At least one group has left the old epoch, which ends its commits. That
//   needs no clock.
// - If a group applied a step, or all that left are prepared for it, the next
//   epoch begins after that step. Otherwise it does the step again.
// - A group acts on the beginning of an epoch when it has met all other groups
//   of it. The state of a group is known by the id of its last commit, which is
//   a hash of the commit before it, the epoch and the step.
//
// A lighthouse has nothing on disk. One that starts again asks what the groups
// know. A report to it binds the group: pushes of an earlier lighthouse (a
// smaller ballot) do not count any more. If more than half of the groups of the
// newest reported epoch have answered, no newer epoch has begun, because a new
// epoch keeps more than half of the groups of the one before that are not known
// to be dead. Where that is impossible, the lighthouse waits for the lease: a
// group without an answer for so long applies nothing until it has one, and
// its own report then no longer counts for a majority.
//
// An epoch from a checkpoint, or from what is left of an epoch of which less
// than half has answered, also needs the lease. It begins a new generation.

/// A time since a fixed moment of this process. It goes on while the machine is
/// suspended (CLOCK_BOOTTIME).
using Time = std::chrono::nanoseconds;

/// One life of a replica group. A group that starts again has a new number.
using GroupId = uint64_t;

/// The state after a step. Two groups with equal commits hold the same weights.
struct Commit {
  int64_t step = 0;
  /// 0 if there is no state.
  uint64_t id = 0;

  explicit operator bool() const { return id != 0; }
  bool operator==(const Commit&) const = default;
};

/// The order of epochs: those of a later lighthouse are later.
struct EpochNumber {
  /// The lighthouse that made the epoch.
  uint64_t ballot = 0;
  /// 0 if there is no epoch.
  uint64_t count = 0;

  explicit operator bool() const { return count != 0; }
  auto operator<=>(const EpochNumber&) const = default;
};

struct Epoch {
  EpochNumber number;
  /// The first epoch of the generation. An epoch that does not continue the one
  /// before begins a generation.
  EpochNumber generation;
  /// In the order of ranks.
  std::vector<GroupId> members;
  /// The commit from which the members go on. Without an id they load the
  /// newest checkpoint.
  Commit base;

  bool has(GroupId group) const;
};

/// The message of a group to the lighthouse, sent repeatedly.
struct Report {
  GroupId group = 0;
  /// The newest lighthouse from which the group has heard.
  uint64_t ballot = 0;
  /// The time of sending, by the clock of the group.
  Time sent{0};
  /// The newest epoch that the group has accepted.
  Epoch epoch;
  /// Whether the group takes no part in `epoch` any more.
  bool has_left = false;
  /// Whether `applied` is the base of `epoch` or a later commit of it.
  bool is_of_epoch = false;
  Commit applied;
  /// The commit for which the group has all gradients.
  Commit prepared;
  /// Whether the group was without an answer for longer than the lease.
  bool is_held = false;
  /// Whether the group has done all its steps. Its last report.
  bool has_finished = false;
  /// Whether the group takes part in no epoch any more. Its last report.
  bool has_left_for_good = false;
  /// The fewest groups that are to train, and how long fewer that have a state
  /// wait for others. After that they begin an epoch, in which they save and
  /// end. 0 waits without limit.
  int64_t min_groups = 1;
  Time join_timeout{0};
  /// Whether the group is to end, so that nobody waits for others.
  bool is_stopping = false;
};

enum class Directive {
  /// Wait for another directive. Does not renew the lease.
  kWait,
  /// Go on in `epoch`, which is the newest one.
  kContinue,
  /// Leave `epoch` at once.
  kLeave,
  /// Leave `epoch` after the step that is running.
  kLeaveAfterStep,
  /// Leave any epoch and enter `epoch`.
  kEnter,
};

/// The message of the lighthouse to a group.
struct Reply {
  GroupId group = 0;
  uint64_t ballot = 0;
  /// Report::sent of the newest report of the group.
  Time answers{0};
  Directive directive = Directive::kWait;
  Epoch epoch;
  /// The newest commit that no failure can undo. Outputs and checkpoints may
  /// contain it.
  Commit acknowledged;
};

/// The beginning of the keys of an epoch in the store,
/// "epoch/<ballot>.<count>/".
std::string key_prefix(const EpochNumber& epoch);

/// The key under which weftrun says when and why a group has ended: its time,
/// as Time, a space and the reason.
std::string ended_key(GroupId group);

/// The key that weftrun sets when a signal ends the whole run.
constexpr const char* kRunEndsKey = "run ends";

/// The commit after `parent` in an epoch.
Commit next_commit(const Commit& parent, const EpochNumber& epoch);
/// The commit of a checkpoint of `step` with which an epoch begins.
Commit checkpoint_commit(int64_t step, const EpochNumber& epoch);

} // namespace weft::lighthouse
