#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lighthouse/messages.h"

namespace weft::lighthouse {

struct LighthouseOptions {
  /// A group is suspected after this time without a report: the others go on
  /// without it, if they may.
  Time suspect = std::chrono::seconds(1);
  /// A group that the others may not go on without is to be ended after this
  /// time without a report.
  Time end = std::chrono::seconds(5);
  /// A group that got no answer for this time applies no step. The same on all
  /// groups.
  Time lease = std::chrono::seconds(30);
  /// The fewest groups of an epoch. See also Report::min_groups.
  int64_t min_groups = 1;
  /// The number of groups for which the first epoch waits, and for how long.
  int64_t expected_groups = 1;
  Time join_timeout = std::chrono::seconds(60);
  /// True if no group of this run can be older than the lighthouse. Otherwise
  /// an epoch without predecessor waits for the lease.
  bool is_first_start = false;
};

/// Decides which groups train together. A pure state machine: its caller
/// delivers reports, tells the time and sends what it returns. See Note [One
/// lineage].
class Lighthouse {
 public:
  /// `ballot` must be greater than that of every earlier lighthouse of the run,
  /// for example the time of the start.
  Lighthouse(LighthouseOptions options, uint64_t ballot, Time now);

  /// Takes a report of a group.
  void receive(const Report& report, Time now);
  /// Takes the news that the process of a group has ended.
  void lose(GroupId group);
  /// Takes the news that a group has done all its steps. Nothing begins from a
  /// checkpoint after that.
  void finish(GroupId group);
  /// Decides what can be decided. To be called after every other method, and
  /// several times in LighthouseOptions::suspect. A longer time without a call
  /// does not count as silence of the groups.
  void update(Time now);

  /// Returns what to tell a group now: after its report, and whenever the
  /// directive for it has changed.
  Reply reply(GroupId group, Time now) const;
  /// Returns the groups that were heard of and are not known to have ended.
  std::vector<GroupId> groups() const;
  /// Returns the groups to end: a new epoch has to wait for them, or they have
  /// no state and nobody is left to give it to them.
  const std::vector<GroupId>& groups_to_end() const { return blocked_by_; }
  /// Whether a group has done all steps.
  bool has_finished() const { return has_finished_; }

  /// The newest epoch, if it is known.
  const std::optional<Epoch>& epoch() const { return current_; }
  const Commit& acknowledged() const { return acknowledged_; }
  uint64_t ballot() const { return ballot_; }

 private:
  struct Group {
    std::optional<Report> report;
    Time heard{0};
    bool has_ended = false;
  };

  void restart(uint64_t ballot, Time now);
  void discount_pause(Time now);
  Time silence_of(const Group& group, Time now) const;
  Time held_after() const;
  bool is_alive(GroupId id, Time now) const;
  bool is_silent_for_lease(GroupId id, Time now) const;
  bool has_left_current(GroupId member) const;
  std::vector<GroupId> joiners(Time now) const;
  bool
  are_enough(const std::vector<GroupId>& members, bool have_state, Time now);
  bool is_in_trouble(Time now) const;
  void adopt_reported_epoch();
  void note_acknowledged();
  void try_first_epoch(Time now);
  void try_next_epoch(Time now);
  void try_new_generation(Time now);
  bool keeps_majority(const std::vector<GroupId>& members, Time now);
  std::optional<Commit> base_after(const std::vector<GroupId>& left) const;
  void begin_epoch(std::vector<GroupId> members, const Commit& base);
  void begin_generation(std::vector<GroupId> members, const Commit& base);

  LighthouseOptions options_;
  uint64_t ballot_;
  Time started_;
  /// The time of the last update().
  Time updated_;
  std::map<GroupId, Group> groups_;
  std::optional<Epoch> current_;
  uint64_t count_ = 0;
  Commit acknowledged_;
  bool has_finished_ = false;
  /// The time since which fewer groups than min_groups wait.
  std::optional<Time> short_since_;
  std::vector<GroupId> blocked_by_;
};

} // namespace weft::lighthouse
