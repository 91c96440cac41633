#include "lighthouse/lighthouse.h"

#include <algorithm>
#include <utility>

namespace weft::lighthouse {
namespace {

/// The clock rates of hosts differ by less than 1 / kDrift.
constexpr int64_t kDrift = 20;

/// Returns true if a group has the state with which `epoch` begins, or a later
/// one.
bool has_state_of(const Report& report, const Epoch& epoch) {
  return (report.is_of_epoch && report.epoch.number == epoch.number) ||
         (epoch.base &&
          (report.applied == epoch.base || report.prepared == epoch.base));
}

} // namespace

Lighthouse::Lighthouse(LighthouseOptions options, uint64_t ballot, Time now)
    : options_(options), ballot_(ballot), started_(now), updated_(now) {}

// Restarts as the newest lighthouse, without any knowledge, because another one
// was started with a greater ballot.
void Lighthouse::restart(uint64_t ballot, Time now) {
  options_.is_first_start = false;
  *this = Lighthouse(options_, ballot, now);
}

void Lighthouse::receive(const Report& report, Time now) {
  if (report.ballot > ballot_) {
    restart(report.ballot + 1, now);
  }
  auto& group = groups_[report.group];
  for (const GroupId member : report.epoch.members) {
    groups_.try_emplace(member);
  }
  // Messages may arrive out of order. A group reports under this ballot once it
  // has heard of it. Reports under an earlier ballot do not count, because an
  // earlier lighthouse may have changed the group's state since.
  if (report.ballot == ballot_ && report.has_finished) {
    finish(report.group);
  }
  if (report.ballot == ballot_ && !group.has_ended &&
      (!group.report || report.sent > group.report->sent)) {
    group.report = report;
    group.heard = now;
    group.has_ended = report.has_left_for_good;
    note_acknowledged();
  }
}

void Lighthouse::lose(GroupId group) {
  groups_[group].has_ended = true;
}

void Lighthouse::finish(GroupId group) {
  groups_[group].has_ended = true;
  has_finished_ = true;
}

void Lighthouse::update(Time now) {
  discount_pause(now);
  adopt_reported_epoch();
  blocked_by_.clear();
  if (current_) {
    try_next_epoch(now);
  } else {
    try_first_epoch(now);
  }
}

// Excludes the time in which this process did not run, because it was stopped
// or had no processor time. Messages that groups sent then are still to be
// read.
void Lighthouse::discount_pause(Time now) {
  const Time pause = now - std::exchange(updated_, now);
  if (pause < options_.suspect / 2) {
    return;
  }
  started_ += pause;
  if (short_since_) {
    *short_since_ += pause;
  }
  for (auto& [id, group] : groups_) {
    group.heard = std::min(group.heard + pause, now);
  }
}

Time Lighthouse::silence_of(const Group& group, Time now) const {
  return now - (group.report ? group.heard : started_);
}

bool Lighthouse::is_alive(GroupId id, Time now) const {
  const auto& group = groups_.at(id);
  return !group.has_ended && silence_of(group, now) <= options_.suspect;
}

bool Lighthouse::is_silent_for_lease(GroupId id, Time now) const {
  return silence_of(groups_.at(id), now) > held_after();
}

Time Lighthouse::held_after() const {
  return options_.lease + options_.lease / kDrift;
}

std::vector<GroupId> Lighthouse::groups() const {
  std::vector<GroupId> result;
  for (const auto& [id, group] : groups_) {
    if (!group.has_ended) {
      result.push_back(id);
    }
  }
  return result;
}

std::vector<GroupId> Lighthouse::joiners(Time now) const {
  std::vector<GroupId> result;
  for (const auto& [id, group] : groups_) {
    if (!current_->has(id) && group.report && is_alive(id, now)) {
      result.push_back(id);
    }
  }
  return result;
}

// Returns true if groups may begin an epoch: if they are enough, or have waited
// for others up to their timeout. Groups without a state have nothing to save
// and wait without limit.
bool Lighthouse::are_enough(
    const std::vector<GroupId>& members,
    bool have_state,
    Time now) {
  int64_t fewest = options_.min_groups;
  for (const auto& [id, group] : groups_) {
    if (group.report && !group.has_ended) {
      fewest = std::max(fewest, group.report->min_groups);
    }
  }
  // After a group has finished, the others have to complete only the last step.
  if (std::ssize(members) >= fewest || has_finished_) {
    short_since_.reset();
    return true;
  }
  Time timeout{0};
  bool are_stopping = false;
  for (const GroupId member : members) {
    const auto& report = *groups_.at(member).report;
    timeout = std::max(timeout, report.join_timeout);
    are_stopping = are_stopping || report.is_stopping;
  }
  short_since_ = short_since_.value_or(now);
  if (are_stopping ||
      (have_state && timeout > Time{0} && now - *short_since_ >= timeout)) {
    return true;
  }
  // A group that does not respond can come back only after it is ended.
  for (const auto& [id, group] : groups_) {
    if (group.report && !group.has_ended &&
        silence_of(group, now) > options_.end) {
      blocked_by_.push_back(id);
    }
  }
  return false;
}

// Adopts the newest reported epoch if no other epoch can have followed it
// without a group that has answered. If a newer one is reported later, an
// earlier lighthouse made it. It has not begun, and may begin now.
void Lighthouse::adopt_reported_epoch() {
  const Epoch* newest = current_ ? &*current_ : nullptr;
  for (const auto& [id, group] : groups_) {
    if (group.report && group.report->epoch.number &&
        (newest == nullptr || group.report->epoch.number > newest->number)) {
      newest = &group.report->epoch;
    }
  }
  if (newest == nullptr || (current_ && newest == &*current_)) {
    return;
  }
  const auto answered =
      std::ranges::count_if(newest->members, [&](GroupId member) {
        const auto& report = groups_.at(member).report;
        return report && !report->is_held;
      });
  if (current_ || answered * 2 > std::ssize(newest->members)) {
    current_ = Epoch(*newest);
    note_acknowledged();
  }
}

void Lighthouse::note_acknowledged() {
  if (!current_) {
    return;
  }
  for (const auto& [id, group] : groups_) {
    if (group.report && group.report->is_of_epoch &&
        group.report->epoch.number == current_->number &&
        group.report->applied.step > acknowledged_.step) {
      acknowledged_ = group.report->applied;
    }
  }
}

void Lighthouse::try_first_epoch(Time now) {
  std::vector<GroupId> members;
  bool is_new_run = options_.is_first_start;
  for (const auto& [id, group] : groups_) {
    is_new_run = is_new_run && (!group.report || !group.report->epoch.number);
    if (group.report && is_alive(id, now)) {
      members.push_back(id);
    }
  }
  if (!is_new_run) {
    try_new_generation(now);
    return;
  }
  const auto count = static_cast<int64_t>(members.size());
  const bool are_stopping = std::ranges::any_of(members, [&](GroupId member) {
    return groups_.at(member).report->is_stopping;
  });
  if (count >= options_.expected_groups || are_stopping ||
      (count > 0 && now - started_ > options_.join_timeout &&
       are_enough(members, /*have_state=*/false, now))) {
    begin_generation(std::move(members), {});
  }
}

bool Lighthouse::is_in_trouble(Time now) const {
  return std::ranges::any_of(current_->members, [&](GroupId member) {
    return !is_alive(member, now) || has_left_current(member);
  });
}

bool Lighthouse::has_left_current(GroupId member) const {
  const auto& report = groups_.at(member).report;
  return report && report->has_left && report->epoch.number == current_->number;
}

void Lighthouse::try_next_epoch(Time now) {
  std::vector<GroupId> left;
  for (const GroupId member : current_->members) {
    if (!is_alive(member, now)) {
      continue;
    }
    if (!has_left_current(member)) {
      return; // It continues, or will be told to leave.
    }
    left.push_back(member);
  }
  const auto base = base_after(left);
  if (!base) {
    try_new_generation(now);
    return;
  }
  auto members = left;
  for (const GroupId group : joiners(now)) {
    members.push_back(group);
  }
  if (!are_enough(members, /*have_state=*/true, now)) {
    return;
  }
  if (keeps_majority(members, now)) {
    begin_epoch(std::move(members), *base);
  }
}

// Returns true if a lighthouse that starts again will hear of an epoch of
// `members`.
bool Lighthouse::keeps_majority(const std::vector<GroupId>& members, Time now) {
  size_t kept = 0;
  size_t possible = 0;
  bool are_others_held = true;
  for (const GroupId member : current_->members) {
    if (groups_.at(member).has_ended) {
      continue;
    }
    ++possible;
    if (std::ranges::find(members, member) != members.end()) {
      ++kept;
    } else {
      are_others_held = are_others_held && is_silent_for_lease(member, now);
      if (silence_of(groups_.at(member), now) > options_.end) {
        blocked_by_.push_back(member);
      }
    }
  }
  if (kept * 2 <= possible && !are_others_held) {
    return false;
  }
  blocked_by_.clear();
  return true;
}

/// Returns the commit from which the groups that left continue. Returns nullopt
/// if none of them has the state of the epoch.
std::optional<Commit> Lighthouse::base_after(
    const std::vector<GroupId>& left) const {
  bool has_state = false;
  Commit base = current_->base;
  for (const GroupId member : left) {
    const auto& report = *groups_.at(member).report;
    has_state = has_state || has_state_of(report, *current_);
    if (report.is_of_epoch && (!base || report.applied.step > base.step)) {
      base = report.applied;
    }
  }
  if (!has_state) {
    return std::nullopt;
  }
  const auto next = next_commit(base, current_->number);
  const bool are_prepared = std::ranges::all_of(left, [&](GroupId member) {
    return groups_.at(member).report->prepared == next;
  });
  return are_prepared ? next : base;
}

// Begins a generation if every group that may still act has left its epoch or
// is held. It begins from the best reported state, or from a checkpoint.
void Lighthouse::try_new_generation(Time now) {
  if (!current_ && now - started_ <= held_after()) {
    return;
  }
  std::vector<GroupId> members;
  const Report* best = nullptr;
  for (const auto& [id, group] : groups_) {
    if (is_alive(id, now)) {
      if (!group.report ||
          (group.report->epoch.number && !group.report->has_left)) {
        return; // It will be told to leave.
      }
      members.push_back(id);
      const auto& report = *group.report;
      const auto rank = [](const Report& r) {
        return std::make_pair(
            r.is_of_epoch ? r.epoch.number : EpochNumber(), r.applied.step);
      };
      if (report.applied && (best == nullptr || rank(report) > rank(*best))) {
        best = &report;
      }
    } else if (!group.has_ended && !is_silent_for_lease(id, now)) {
      return;
    }
  }
  if (members.empty() || !are_enough(members, best != nullptr, now)) {
    return;
  }
  if (best == nullptr && has_finished_) {
    blocked_by_ = members; // The groups that had the state have finished.
    return;
  }
  const auto base = best == nullptr ? Commit() : best->applied;
  begin_generation(std::move(members), base);
}

void Lighthouse::begin_epoch(std::vector<GroupId> members, const Commit& base) {
  short_since_.reset();
  current_ = Epoch{
      {ballot_, ++count_}, current_->generation, std::move(members), base};
}

void Lighthouse::begin_generation(
    std::vector<GroupId> members,
    const Commit& base) {
  short_since_.reset();
  const EpochNumber number{ballot_, ++count_};
  current_ = Epoch{number, number, std::move(members), base};
  acknowledged_ = {};
}

Reply Lighthouse::reply(GroupId id, Time now) const {
  const auto& group = groups_.at(id);
  Reply reply;
  reply.group = id;
  reply.ballot = ballot_;
  reply.acknowledged = acknowledged_;
  if (!group.report) {
    return reply;
  }
  const auto& report = *group.report;
  reply.answers = report.sent;
  const bool is_running = report.epoch.number && !report.has_left;
  const bool is_member = current_ && current_->has(id);
  if (is_member && report.epoch.number != current_->number) {
    reply.directive = Directive::kEnter;
    reply.epoch = *current_;
  } else if (!is_running) {
    reply.directive = Directive::kWait;
  } else if (
      is_member ? is_in_trouble(now)
                : (current_ || now - started_ > held_after())) {
    // The group's epoch lost a member, is not the newest one, or is still
    // unknown after the lease.
    reply.directive = Directive::kLeave;
    reply.epoch = report.epoch;
  } else if (is_member) {
    reply.directive = joiners(now).empty() ? Directive::kContinue
                                           : Directive::kLeaveAfterStep;
    reply.epoch = *current_;
  }
  return reply;
}

} // namespace weft::lighthouse
