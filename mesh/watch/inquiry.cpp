// The thread of a Watch that looks, and asks.

#include <algorithm>
#include <cstdio>
#include <exception>

#include <pthread.h>

#include "mesh/watch/peer_process.h"
#include "mesh/watch/questions.h"
#include "mesh/watch/verdict.h"
#include "mesh/watch/waits.h"
#include "mesh/watch/watch.h"
#include "mesh/watch/wording.h"

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
      inquire(lock, kFailed);
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
  // Another's inquiry a moment ago has told that one enough.
  if (WatchClock::now() - answered_at_ > options_.stall / 2) {
    inquire(lock, kStalled);
  }
  next_look_ = waited + std::clamp<nanoseconds>(
                            waited / 2, options_.stall, kLongestPause);
}

void Watch::inquire(Lock& lock, const char* question) {
  const uint64_t wanted = wanted_;
  const auto keeper = keeper_;
  // Its store takes questions, and answers none.
  misses_keeper_ = is_stopped_process(keeper);
  const bool misses_keeper = misses_keeper_;
  asked_ = std::max(asked_, round_);
  lock.unlock();
  std::string whereabouts;
  try {
    whereabouts = misses_keeper ? miss_keeper(question, keeper)
                                : ask_around(question, wanted);
  } catch (const std::exception&) {
    whereabouts = kStoreIsGone;
  }
  lock.lock();
  whereabouts_ = std::move(whereabouts);
  made_ = std::max(made_, wanted);
  changed_.notify_all();
}

std::string Watch::ask_around(const char* question, uint64_t wanted) {
  const bool has_failed = question == kFailed;
  auto answers = asking_->ask(
      asked_,
      question,
      {has_failed ? kFailedLimit : kPatientLimit, kPatientLimit, [&] {
         return !has_failed && is_urgent(wanted);
       }});
  if (auto& own = answers[static_cast<size_t>(rank_)]; !own.came) {
    own = {true, sight(), {}};
  }
  audience_ = std::ranges::count_if(answers, &RankAnswer::came);
  judge(answers);
  ask_for_stacks(answers);
  auto whereabouts = describe_wait(answers, rank_);
  warn(answers, whereabouts);
  if (has_failed) {
    note_heard(*asking_);
  }
  return whereabouts;
}

// Without the store, and so without the others.
std::string Watch::miss_keeper(
    const char* question,
    const std::string& keeper) {
  auto whereabouts = keeper_text(keeper);
  if (question == kFailed) {
    begin_record();
  }
  if (is_time_to_warn() && rank_ == 1) {
    say(whereabouts);
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

bool Watch::is_time_to_warn() {
  const auto waited = groups_.longest_wait();
  if (waited < next_warning_) {
    return false;
  }
  next_warning_ = 2 * waited;
  return true;
}

// One of those that wait for the same is enough.
void Watch::warn(
    const std::vector<RankAnswer>& answers,
    const std::string& whereabouts) {
  if (whereabouts.empty() || !is_time_to_warn()) {
    return;
  }
  const auto is_first = std::ranges::none_of(answers, [&](const auto& answer) {
    return answer.sight.rank < rank_ && answer.came &&
           waits_alike(answers, answer.sight.rank, rank_);
  });
  if (is_first) {
    say(whereabouts);
  }
}

void Watch::say(const std::string& warning) const {
  std::fprintf(
      stderr,
      "WARNING rank=%lld op=watch %s\n",
      static_cast<long long>(rank_),
      warning.c_str());
}

} // namespace weft::mesh
