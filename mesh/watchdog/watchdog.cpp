#include "mesh/watchdog/watchdog.h"

#include <cstdio>
#include <exception>

#include <pthread.h>

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/communicator/format.h"
#include "mesh/crash/stacks.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/activity.h"
#include "mesh/watchdog/flight_files.h"
#include "mesh/watchdog/peer_process.h"
#include "mesh/watchdog/query_reasons.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using WatchClock = std::chrono::steady_clock;

/// How long a thread whose collective has failed waits for the reason, the
/// asking thread's last look and a busy machine included.
constexpr milliseconds kExplainLimit{2000};
constexpr milliseconds kEndLimit{2000};
constexpr int kThreadsAtStore = 2;
/// How long rank 0 keeps the store for others that ask.
constexpr milliseconds kHearLimit{1000};

} // namespace

std::shared_ptr<Watch> Watch::begin(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size,
    WatchOptions options) {
  auto watch = std::make_shared<Watch>(
      NoticeBoard(std::move(store), rank, world_size),
      rank,
      std::move(options));
  watch->do_aside(&Watch::listen);
  watch->do_aside(&Watch::look);
  return watch;
}

Watch::Watch(NoticeBoard board, int64_t rank, WatchOptions options)
    : rank_(rank),
      options_(std::move(options)),
      board_(std::move(board)),
      audience_(board_.world_size()),
      next_look_(options_.stall),
      next_warning_(options_.warn_after) {}

void Watch::end() {
  auto last = sight();
  last.has_ended = std::uncaught_exceptions() == 0 && groups_.is_sound();
  Lock lock(mutex_);
  last_ = std::move(last);
  is_over_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, kEndLimit, [&] {
    return threads_ <= (misses_keeper_ ? kThreadsAtStore : 0);
  });
}

// In a thread of its own.
void Watch::do_aside(std::function<void(Watch&)> chore) {
  {
    const std::lock_guard lock(mutex_);
    ++threads_;
  }
  std::thread([watch = shared_from_this(), chore = std::move(chore)] {
    chore(*watch);
    const std::lock_guard lock(watch->mutex_);
    --watch->threads_;
    watch->changed_.notify_all();
  }).detach();
}

void Watch::say_goodbye() {
  const auto round = [&] {
    const std::lock_guard lock(mutex_);
    return round_;
  }();
  try {
    let_others_hear();
    if (last_.has_ended) {
      asking_->end(last_);
    }
    asking_->ring_self(round, kBye);
  } catch (const std::exception&) {
    // The store has gone, and the listener knows.
  }
}

// Rank 0 takes the store with it, and others may be about to ask.
void Watch::let_others_hear() {
  const bool has_failed = [&] {
    const std::lock_guard lock(mutex_);
    return verdict_ || made_ > 0;
  }();
  if (rank_ != 0 || !has_failed) {
    return;
  }
  asking_->await_heard(audience_, kHearLimit);
}

// Counted once: it knows why a collective has failed.
void Watch::note_heard(NoticeBoard& board) {
  if (!has_heard_.exchange(true)) {
    board.note_heard();
  }
}

void Watch::add(
    const std::string& key,
    const std::shared_ptr<GroupState>& group) {
  groups_.add(key, group);
  const auto verdict = [&] {
    const std::lock_guard lock(mutex_);
    return verdict_;
  }();
  if (verdict) {
    group->fail(verdict->failure());
  }
}

// Those whose collectives fail because this rank hangs up ask why, and find it.
GroupFailure Watch::tell(const GroupFailure& failure) {
  Verdict verdict{failure.reason, failure.is_disagreement};
  try {
    auto board = board_.clone();
    verdict = board.leave_verdict(verdict);
    note_heard(board);
  } catch (const std::exception&) {
    // The store has gone: they find this rank gone, too.
  }
  take(verdict);
  return verdict.failure();
}

namespace {

std::string text_of_cause(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something that is no std::exception";
  }
}

} // namespace

void Watch::note_exception(
    std::string_view what,
    const std::exception_ptr& cause) {
  auto text = text_of_cause(cause);
  auto positions = groups_.positions();
  const std::lock_guard lock(mutex_);
  // One that left a part within this one by the same has said so already.
  if (has_departed_ && departure_.positions == positions &&
      departure_.text.ends_with(text)) {
    return;
  }
  departure_ = {
      detail::concat(what, " by an exception: ", text),
      ledger_now_ns(),
      std::move(positions)};
  has_departed_ = true;
}

GroupFailure Watch::explain(const GroupFailure& failure) {
  Lock lock(mutex_);
  wants_stacks_ = wants_stacks_ || failure.is_timeout;
  const uint64_t own = ++wanted_;
  changed_.notify_all();
  changed_.wait_for(lock, kExplainLimit, [&] {
    return verdict_ || made_ >= own || is_over_ || store_is_gone_;
  });
  if (verdict_) {
    return verdict_->failure();
  }
  auto result = failure;
  // Nobody but the store could keep an inquiry so long.
  const auto more =
      made_ >= own || store_is_gone_ ? whereabouts_ : keeper_text(keeper_);
  if (!more.empty()) {
    result.reason += ". " + more;
  }
  return result;
}

RankSight Watch::sight() const {
  RankSight result;
  result.rank = rank_;
  result.activity = activity_text();
  result.groups = groups_.sights();
  if (has_departed_) {
    const std::lock_guard lock(mutex_);
    result.departure = departure_.text;
    result.departed_ns = departure_.at_ns;
    for (auto& group : result.groups) {
      const auto position = departure_.positions.find(group.key);
      group.left_at = position == departure_.positions.end()
                          ? -1
                          : static_cast<int64_t>(position->second);
    }
  }
  result.now_ns = ledger_now_ns();
  return result;
}

// The listener.

void Watch::listen() {
  pthread_setname_np(pthread_self(), "weft_listen");
  try {
    auto board = board_.clone();
    board.introduce();
    for (uint64_t round = 0;; ++round) {
      const auto question = board.await_question(round);
      if (!begin_answer(question)) {
        return;
      }
      board.answer(round, sight());
      begin_chores(question);
      take_what_counts(board);
    }
  } catch (const std::exception&) {
    // Nobody asks any more.
    const std::lock_guard lock(mutex_);
    store_is_gone_ = true;
    whereabouts_ = kStoreIsGone;
    changed_.notify_all();
  }
}

// What takes long, each once: what comes after a failure is of no interest.
// Others wait for this rank's next answer meanwhile.
void Watch::begin_chores(const std::string& question) {
  if (question != kStalled && question != kWarned) {
    begin_record();
  }
  const auto own = " " + std::to_string(rank_) + " ";
  if (question.starts_with(kStacks) && question.find(own) != question.npos &&
      !std::exchange(has_shown_stacks_, true)) {
    do_aside(&Watch::show_stacks);
  }
}

void Watch::begin_record() {
  const auto prefix = flight_record_prefix(options_.flight_record);
  if (prefix.empty() || has_record_.exchange(true)) {
    return;
  }
  do_aside([prefix, records = groups_.records()](Watch& watch) {
    leave_record(prefix, records, watch.rank_);
  });
}

void Watch::leave_record(
    const std::string& prefix,
    const std::vector<GroupRecord>& records,
    int64_t rank) {
  try {
    write_flight_record(records, rank, prefix);
  } catch (const std::exception& error) {
    std::fprintf(
        stderr,
        "WARNING rank=%lld op=flight_record %s\n",
        static_cast<long long>(rank),
        error.what());
  }
}

void Watch::show_stacks() {
  std::fprintf(
      stderr,
      "rank=%lld is waited for in vain; its threads:\n%s",
      static_cast<long long>(rank_),
      thread_stacks().c_str());
}

// Counts before the answer: who has it may ask again. False at the end.
bool Watch::begin_answer(const std::string& question) {
  const std::lock_guard lock(mutex_);
  ++round_;
  answered_at_ = WatchClock::now();
  if (question == kWarned) {
    warned_at_ = answered_at_;
  }
  return !is_over_;
}

void Watch::take_what_counts(NoticeBoard& board) {
  if (const auto verdict = board.verdict()) {
    take(*verdict);
    note_heard(board);
  }
}

void Watch::take(const Verdict& verdict) {
  {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
    changed_.notify_all();
  }
  groups_.fail(verdict.failure());
}

} // namespace weft::mesh
