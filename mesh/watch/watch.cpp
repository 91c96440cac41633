#include "mesh/watch/watch.h"

#include <algorithm>
#include <cstdio>
#include <exception>

#include <pthread.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/watch/activity.h"
#include "mesh/watch/flight_files.h"
#include "mesh/watch/peer_process.h"
#include "mesh/watch/stacks.h"

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
/// How long a thread whose collective has failed waits for the reason, the
/// asking thread's last look and a busy machine included.
constexpr milliseconds kExplainLimit{2000};
constexpr milliseconds kEndLimit{2000};
constexpr int kThreadsAtStore = 2;
/// Of two ranks that wait, the first asks first.
constexpr milliseconds kStagger{20};
constexpr int64_t kMostStagger = 10;
constexpr nanoseconds kLongestPause = std::chrono::seconds(10);

constexpr const char* kStoreIsGone = "Rank 0 has ended, and the store with it";

constexpr const char* kStalled = "stalled";
constexpr const char* kFailed = "failed";
constexpr const char* kVerdictRung = "verdict";
constexpr const char* kStacks = "stacks";
constexpr const char* kBye = "bye";

std::string describe_keeper(const std::string& process) {
  const auto state = peer_process_text(process);
  return "Rank 0, which has the store, gives no sign of life" +
         (state.empty() ? "" : " (" + state + ")");
}

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
  const auto deadline = WatchClock::now() + kPatientLimit;
  while (asking_->heard() < audience_ && WatchClock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
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
    group->fail({verdict->sentence, true});
  }
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
    return {verdict_->sentence, true};
  }
  auto result = failure;
  // Nobody but the store could keep an inquiry so long.
  const auto more =
      made_ >= own || store_is_gone_ ? whereabouts_ : describe_keeper(keeper_);
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
      if (!begin_answer()) {
        return;
      }
      board.answer(round, sight());
      begin_chores(question);
      if (const auto verdict = board.verdict()) {
        take(*verdict);
        note_heard(board);
      }
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
  if (question != kStalled) {
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
bool Watch::begin_answer() {
  const std::lock_guard lock(mutex_);
  ++round_;
  answered_at_ = WatchClock::now();
  return !is_over_;
}

void Watch::take(const Verdict& verdict) {
  {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
    changed_.notify_all();
  }
  groups_.fail({verdict.sentence, true});
}

// The one that looks.

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
  auto whereabouts = describe_keeper(keeper);
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
