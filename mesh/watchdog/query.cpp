// The thread of a Watch that looks, and asks.

#include <algorithm>
#include <cstdio>
#include <exception>

#include <pthread.h>

#include "mesh/communicator/format.h"
#include "mesh/watchdog/hang_diagnosis.h"
#include "mesh/watchdog/peer_process.h"
#include "mesh/watchdog/query_reasons.h"
#include "mesh/watchdog/waits.h"
#include "mesh/watchdog/watchdog.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using WatchClock = std::chrono::steady_clock;

constexpr milliseconds kGlance{100};
/// How long answers may take: while ranks wait; and after a failure, when one
/// that is known not to live may be the reason.
constexpr milliseconds kPatientLimit{1000};
constexpr milliseconds kFailedLimit{400};
/// Of two ranks that wait, the first asks first.
constexpr milliseconds kStagger{20};
constexpr int64_t kMostStagger = 10;
constexpr nanoseconds kLongestPause = std::chrono::seconds(10);

} // namespace

void Watch::look() {
  pthread_setname_np(pthread_self(), "weft_watch");
  try {
    // Now: it would try for long once the store has gone.
    asking_ = board_.clone();
    auto keeper = asking_->process_of(0);
    const std::lock_guard lock(mutex_);
    keeper_ = std::move(keeper);
  } catch (const std::exception&) {
    return; // The listener finds the same.
  }
  Lock lock(mutex_);
  while (true) {
    changed_.wait_for(
        lock, kGlance, [&] { return is_over_ || wanted_ > made_; });
    if (is_over_ || store_is_gone_) {
      lock.unlock();
      say_goodbye();
      return;
    }
    if (wanted_ > made_) {
      inquire(lock, Reason::kFailed);
      continue;
    }
    lock.unlock();
    const auto waited = groups_.longest_wait();
    lock.lock();
    if (waited >= options_.stall) {
      look_into(lock, waited);
    } else {
      next_look_ = options_.stall;
      next_warning_ = options_.warn_after;
      circle_.clear();
    }
  }
}

void Watch::look_into(Lock& lock, nanoseconds waited) {
  const auto stagger = std::min(rank_, kMostStagger) * kStagger;
  if (verdict_ || waited < next_look_ + stagger) {
    return;
  }
  const auto now = WatchClock::now();
  const bool warns =
      waited >= next_warning_ && now - warned_at_ > options_.stall;
  // Another's inquiry a moment ago has told that one enough.
  if (now - answered_at_ > options_.stall / 2) {
    inquire(lock, warns ? Reason::kWarns : Reason::kStalled);
  } else if (warns) {
    next_look_ = waited + options_.stall / 2;
    return;
  }
  if (waited >= next_warning_) {
    next_warning_ = 2 * waited;
  }
  next_look_ = std::min(
      next_warning_,
      waited +
          std::clamp<nanoseconds>(waited / 2, options_.stall, kLongestPause));
  if (!circle_.empty()) { // Certain, if it is still there.
    next_look_ = waited + options_.stall / 2;
  }
}

void Watch::inquire(Lock& lock, Reason reason) {
  const uint64_t wanted = wanted_;
  const auto keeper = keeper_;
  // Its store takes questions, and answers none.
  misses_keeper_ = is_stopped_process(keeper);
  const bool misses_keeper = misses_keeper_;
  asked_ = std::max(asked_, round_);
  lock.unlock();
  std::string whereabouts;
  try {
    whereabouts = misses_keeper ? miss_keeper(reason, keeper)
                                : ask_around(reason, wanted);
  } catch (const std::exception&) {
    whereabouts = kStoreIsGone;
  }
  lock.lock();
  whereabouts_ = std::move(whereabouts);
  made_ = std::max(made_, wanted);
  changed_.notify_all();
}

std::string Watch::ask_around(Reason reason, uint64_t wanted) {
  const bool has_failed = reason == Reason::kFailed;
  auto answers = asking_->ask(
      asked_,
      has_failed ? kFailed : kStalled,
      {has_failed ? kFailedLimit : kPatientLimit, kPatientLimit, [&] {
         return !has_failed && is_urgent(wanted);
       }});
  if (auto& own = answers[static_cast<size_t>(rank_)]; !own.came) {
    own = {true, sight(), {}};
  }
  audience_ = std::ranges::count_if(answers, &RankAnswer::came);
  judge(answers);
  take_what_counts(*asking_);
  ask_for_stacks(answers);
  auto whereabouts = describe_wait(answers, rank_);
  if (reason == Reason::kWarns && is_first_to_wait(answers)) {
    warn(whereabouts);
    asking_->ring(++asked_, kWarned);
  }
  if (has_failed) {
    note_heard(*asking_);
  }
  return whereabouts;
}

// Without the store, and so without the others.
std::string Watch::miss_keeper(Reason reason, const std::string& keeper) {
  auto whereabouts = keeper_text(keeper);
  if (reason == Reason::kFailed) {
    begin_record();
  }
  if (reason == Reason::kWarns && rank_ == 1) {
    warn(whereabouts);
  }
  return whereabouts;
}

// A thread waits in explain(), or the end has come.
bool Watch::is_urgent(uint64_t wanted) const {
  const std::lock_guard lock(mutex_);
  return is_over_ || wanted_ > wanted;
}

void Watch::judge(const std::vector<RankAnswer>& answers) {
  auto verdict = find_mismatch(answers);
  if (!verdict) {
    verdict = find_ended(answers);
  }
  if (!verdict) {
    verdict = find_departed(answers);
  }
  if (!verdict) {
    const auto circle = find_circle(answers);
    const auto text = circle ? circle->sentence : std::string();
    if (circle && text == circle_) {
      verdict = circle;
    }
    circle_ = text;
  }
  if (verdict) {
    take(asking_->leave_verdict(*verdict));
    // All have counted the inquiry before.
    asking_->ring(++asked_, kVerdictRung);
  }
}

// Of ranks that live and were waited for in vain, once.
void Watch::ask_for_stacks(const std::vector<RankAnswer>& answers) {
  std::string question = kStacks;
  {
    const std::lock_guard lock(mutex_);
    if (verdict_ || !std::exchange(wants_stacks_, false)) {
      return;
    }
  }
  for (const int64_t rank : late_ranks(answers, rank_)) {
    question += " " + std::to_string(rank) + " ";
  }
  if (question != kStacks) {
    asking_->ring(++asked_, question);
  }
}

// Of those that wait for the same: one of them is enough to say so.
bool Watch::is_first_to_wait(const std::vector<RankAnswer>& answers) const {
  return std::ranges::none_of(answers, [&](const auto& answer) {
    return answer.sight.rank < rank_ && answer.came &&
           waits_alike(answers, answer.sight.rank, rank_);
  });
}

void Watch::warn(const std::string& whereabouts) const {
  if (whereabouts.empty()) {
    return;
  }
  std::fprintf(
      stderr,
      "WARNING rank=%lld op=watch %s\n",
      static_cast<long long>(rank_),
      whereabouts.c_str());
}

} // namespace weft::mesh
