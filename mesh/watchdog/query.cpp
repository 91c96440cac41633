// The thread of a Watchdog that polls this rank's flight recorders and makes
// inquiries.

#include <algorithm>
#include <cstdio>
#include <exception>

#include <pthread.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/bootstrap/rank_logger.h"
#include "mesh/communicator/format.h"
#include "mesh/watchdog/hang_diagnosis.h"
#include "mesh/watchdog/peer_process.h"
#include "mesh/watchdog/waits.h"
#include "mesh/watchdog/watchdog.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using WatchClock = std::chrono::steady_clock;

constexpr milliseconds kPollInterval{100};
/// The timeouts of replies. After a failure, a rank that is known to be gone or
/// stopped gets the shorter one, because it may be the cause.
constexpr milliseconds kReplyTimeout{1000};
constexpr milliseconds kReplyTimeoutAfterFailure{400};
/// The delay of a waiting rank's inquiry, per rank and up to kMaxStagger ranks,
/// so that waiting ranks do not all ask at once.
constexpr milliseconds kStagger{20};
constexpr int64_t kMaxStagger = 10;
constexpr nanoseconds kLongestPause = std::chrono::seconds(10);

} // namespace

void Watchdog::poll_groups() {
  pthread_setname_np(pthread_self(), "weft_watch");
  try {
    // Connects now, because a client retries for a long time if the store is
    // gone.
    asking_ = status_exchange_.clone();
    auto store_owner = asking_->process_of(0);
    const std::lock_guard lock(mutex_);
    store_owner_ = std::move(store_owner);
  } catch (const std::exception&) {
    return; // The listener gets the same error.
  }
  Lock lock(mutex_);
  while (true) {
    changed_.wait_for(
        lock, kPollInterval, [&] { return is_over_ || wanted_ > made_; });
    if (is_over_ || store_is_gone_) {
      lock.unlock();
      shut_down();
      return;
    }
    if (wanted_ > made_) {
      query_ranks(lock, Reason::kFailed);
      continue;
    }
    lock.unlock();
    const auto waited = groups_.longest_wait();
    lock.lock();
    if (waited >= options_.stall) {
      investigate_wait(lock, waited);
    } else {
      next_poll_ = options_.stall;
      next_warning_ = options_.warn_after;
      deadlock_cycle_.clear();
    }
  }
}

void Watchdog::investigate_wait(Lock& lock, nanoseconds waited) {
  const auto stagger = std::min(rank_, kMaxStagger) * kStagger;
  if (diagnosis_ || waited < next_poll_ + stagger) {
    return;
  }
  const auto now = WatchClock::now();
  const bool warns =
      waited >= next_warning_ && now - warned_at_ > options_.stall;
  // If another rank made an inquiry a moment ago, this rank need not repeat it.
  if (now - answered_at_ > options_.stall / 2) {
    query_ranks(lock, warns ? Reason::kWarns : Reason::kStalled);
  } else if (warns) {
    next_poll_ = waited + options_.stall / 2;
    return;
  }
  if (waited >= next_warning_) {
    next_warning_ = 2 * waited;
  }
  next_poll_ = std::min(
      next_warning_,
      waited +
          std::clamp<nanoseconds>(waited / 2, options_.stall, kLongestPause));
  if (!deadlock_cycle_.empty()) { // The next inquiry confirms it.
    next_poll_ = waited + options_.stall / 2;
  }
}

void Watchdog::query_ranks(Lock& lock, Reason reason) {
  const uint64_t wanted = wanted_;
  const auto store_owner = store_owner_;
  // The store of a stopped process accepts requests but does not reply.
  is_store_owner_stopped_ = is_stopped_process(store_owner);
  const bool is_store_owner_stopped = is_store_owner_stopped_;
  asked_ = std::max(asked_, round_);
  lock.unlock();
  std::string waiting_for;
  try {
    waiting_for = is_store_owner_stopped
                      ? report_stopped_store_owner(reason, store_owner)
                      : query_and_diagnose(reason, wanted);
  } catch (const std::exception&) {
    waiting_for = kStoreIsGone;
  }
  lock.lock();
  waiting_for_ = std::move(waiting_for);
  made_ = std::max(made_, wanted);
  changed_.notify_all();
}

std::string Watchdog::query_and_diagnose(Reason reason, uint64_t wanted) {
  const bool has_failed = reason == Reason::kFailed;
  auto replies = asking_->ask(
      asked_,
      has_failed ? kFailed : kStalled,
      {has_failed ? kReplyTimeoutAfterFailure : kReplyTimeout,
       kReplyTimeout,
       [&] { return !has_failed && is_urgent(wanted); }});
  if (auto& own = replies[static_cast<size_t>(rank_)]; !own.has_reply) {
    own = {true, status(), {}};
  }
  num_replies_ = std::ranges::count_if(replies, &RankReply::has_reply);
  diagnose(replies);
  adopt_published_diagnosis(*asking_);
  request_stacks(replies);
  auto waiting_for = describe_wait(replies, rank_);
  if (has_failed && waiting_for.empty()) {
    waiting_for = describe_behind(replies, rank_);
  }
  if (reason == Reason::kWarns && is_first_to_wait(replies)) {
    warn(waiting_for);
    asking_->notify(++asked_, kWarned);
  }
  if (has_failed) {
    acknowledge_failure(*asking_);
  }
  return waiting_for;
}

// Reports a stopped rank 0 without asking the other ranks, because an inquiry
// needs the store. Only rank 1 warns.
std::string Watchdog::report_stopped_store_owner(
    Reason reason,
    const std::string& store_owner) {
  auto waiting_for = store_owner_text(store_owner);
  if (reason == Reason::kFailed) {
    start_flight_record();
  }
  if (reason == Reason::kWarns && rank_ == 1) {
    warn(waiting_for);
  }
  return waiting_for;
}

// Returns true if a thread has entered explain() after request `wanted`, or the
// watchdog ends.
bool Watchdog::is_urgent(uint64_t wanted) const {
  const std::lock_guard lock(mutex_);
  return is_over_ || wanted_ > wanted;
}

void Watchdog::diagnose(const std::vector<RankReply>& replies) {
  auto diagnosis = find_mismatch(replies);
  if (!diagnosis) {
    diagnosis = find_ended(replies);
  }
  if (!diagnosis) {
    diagnosis = find_rank_with_error(replies);
  }
  if (!diagnosis) {
    const auto cycle = find_deadlock_cycle(replies);
    const auto text = cycle ? cycle->sentence : std::string();
    if (cycle && text == deadlock_cycle_) {
      diagnosis = cycle;
    }
    deadlock_cycle_ = text;
  }
  if (diagnosis) {
    take(asking_->publish_diagnosis(*diagnosis));
    // Every rank has counted the inquiry, so this notice gets the next number.
    asking_->notify(++asked_, kDiagnosisPublished);
  }
}

// Requests the stacks of the ranks that replied and for which this rank has
// waited until its timeout. Does so once per timeout.
void Watchdog::request_stacks(const std::vector<RankReply>& replies) {
  std::string query = kStacks;
  {
    const std::lock_guard lock(mutex_);
    if (diagnosis_ || !std::exchange(wants_stacks_, false)) {
      return;
    }
  }
  for (const int64_t rank : late_ranks(replies, rank_)) {
    query += " " + std::to_string(rank) + " ";
  }
  if (query != kStacks) {
    asking_->notify(++asked_, query);
  }
}

// Returns true if no lower rank waits in the same call: one warning is enough.
bool Watchdog::is_first_to_wait(const std::vector<RankReply>& replies) const {
  return std::ranges::none_of(replies, [&](const auto& reply) {
    return reply.status.rank < rank_ && reply.has_reply &&
           wait_in_same_call(replies, reply.status.rank, rank_);
  });
}

void Watchdog::warn(const std::string& waiting_for) const {
  if (!waiting_for.empty()) {
    rank_logger(rank_).warning("op=watch " + waiting_for);
  }
}

} // namespace weft::mesh
