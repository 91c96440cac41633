#include "lighthouse/member.h"

#include <algorithm>

namespace weft::lighthouse {

Member::Member(GroupId group, Time lease, Time now)
    : group_(group), lease_(lease), answered_(now) {}

bool Member::is_in_lease(Time now) const {
  return !is_held_ && now - answered_ <= lease_;
}

Report Member::report(Time now) {
  is_held_ = !is_in_lease(now);
  return {
      .group = group_,
      .ballot = ballot_,
      .sent = now,
      .epoch = epoch_,
      .has_left = epoch_.number && phase_ == Phase::kOutside,
      .is_of_epoch = is_of_epoch_,
      .applied = applied_,
      .prepared = prepared_,
      .is_held = is_held_,
      .has_finished = has_finished_};
}

void Member::receive(const Reply& reply, Time now) {
  if (reply.ballot < ballot_) {
    return;
  }
  is_held_ = !is_in_lease(now);
  ballot_ = reply.ballot;
  const bool is_newest = reply.directive == Directive::kEnter ||
                         reply.directive == Directive::kContinue ||
                         reply.directive == Directive::kLeaveAfterStep;
  if (is_newest && now - reply.answers <= lease_) {
    answered_ = std::max(answered_, reply.answers);
    is_held_ = false;
  }
  const bool is_own = reply.epoch.number == epoch_.number;
  if (is_newest && is_own && reply.acknowledged.step > acknowledged_.step) {
    acknowledged_ = reply.acknowledged;
  }
  switch (reply.directive) {
    case Directive::kWait:
    case Directive::kContinue:
      break;
    case Directive::kLeave:
      if (is_own) {
        leave();
      }
      break;
    case Directive::kLeaveAfterStep:
      leaves_after_step_ = leaves_after_step_ || is_own;
      break;
    case Directive::kEnter:
      if (reply.epoch.number > epoch_.number) {
        epoch_ = reply.epoch;
        phase_ = Phase::kMeeting;
        is_of_epoch_ = false;
        leaves_after_step_ = false;
      }
      break;
  }
}

bool Member::enter(Time now, bool& applies) {
  applies = false;
  if (!is_in_lease(now)) {
    leave();
    return false;
  }
  if (epoch_.base && prepared_ == epoch_.base) {
    applied_ = prepared_;
    applies = true;
  }
  prepared_ = {};
  is_of_epoch_ = epoch_.base && applied_ == epoch_.base;
  phase_ = is_of_epoch_ ? Phase::kTraining : Phase::kWithoutState;
  return true;
}

void Member::take_state(int64_t checkpoint_step) {
  applied_ = epoch_.base ? epoch_.base
                         : checkpoint_commit(checkpoint_step, epoch_.number);
  is_of_epoch_ = true;
  phase_ = Phase::kTraining;
}

const Commit& Member::prepare() {
  prepared_ = next_commit(applied_, epoch_.number);
  return prepared_;
}

bool Member::commit(Time now) {
  if (!is_in_lease(now)) {
    leave();
    return false;
  }
  applied_ = prepared_;
  prepared_ = {};
  return true;
}

void Member::leave() {
  phase_ = Phase::kOutside;
}

} // namespace weft::lighthouse
