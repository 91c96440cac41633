#include "mesh/watchdog/watchdog.h"

#include <cstdio>
#include <exception>

#include <pthread.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/bootstrap/rank_logger.h"
#include "mesh/communicator/format.h"
#include "mesh/crash/stacks.h"
#include "mesh/error/error.h"
#include "mesh/error/failure.h"
#include "mesh/watchdog/activity.h"
#include "mesh/watchdog/flight_files.h"
#include "mesh/watchdog/peer_process.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using WatchClock = std::chrono::steady_clock;

/// The time for which explain() waits for the cause of a failure. It includes
/// the end of a running inquiry, and delays on a busy host.
constexpr milliseconds kExplainLimit{2000};
constexpr milliseconds kEndLimit{2000};
/// The time for which rank 0 keeps the store after a failure, so that other
/// ranks can ask.
constexpr milliseconds kAcknowledgeTimeout{1000};

} // namespace

std::shared_ptr<Watchdog> Watchdog::begin(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size,
    WatchdogOptions options) {
  auto watch = std::make_shared<Watchdog>(
      StatusExchange(std::move(store), rank, world_size),
      rank,
      std::move(options));
  watch->spawn_thread(&Watchdog::store_threads_, &Watchdog::listen);
  watch->spawn_thread(&Watchdog::store_threads_, &Watchdog::poll_groups);
  return watch;
}

Watchdog::Watchdog(
    StatusExchange status_exchange,
    int64_t rank,
    WatchdogOptions options)
    : rank_(rank),
      options_(std::move(options)),
      status_exchange_(std::move(status_exchange)),
      num_replies_(status_exchange_.world_size()),
      next_poll_(options_.stall),
      next_warning_(options_.warn_after) {}

void Watchdog::end() {
  auto last = status();
  last.has_ended = std::uncaught_exceptions() == 0 && groups_.is_sound();
  Lock lock(mutex_);
  last_ = std::move(last);
  is_over_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, kEndLimit, [&] {
    return writing_threads_ == 0 &&
           (is_store_owner_stopped_ || store_threads_ == 0);
  });
}

void Watchdog::spawn_thread(
    ThreadCount count,
    std::function<void(Watchdog&)> run) {
  {
    const std::lock_guard lock(mutex_);
    ++(this->*count);
  }
  std::thread([watch = shared_from_this(), count, run = std::move(run)] {
    run(*watch);
    const std::lock_guard lock(watch->mutex_);
    --(watch.get()->*count);
    watch->changed_.notify_all();
  }).detach();
}

void Watchdog::shut_down() {
  const auto round = [&] {
    const std::lock_guard lock(mutex_);
    return round_;
  }();
  try {
    drain();
    if (last_.has_ended) {
      asking_->end(last_);
    }
    asking_->notify_self(round, kShutdown);
  } catch (const std::exception&) {
    // The store is gone. The listener notices this itself.
  }
}

// After a failure, rank 0 waits until the other ranks know the cause: the store
// ends with rank 0, and they may be about to ask.
void Watchdog::drain() {
  const bool has_failed = [&] {
    const std::lock_guard lock(mutex_);
    return diagnosis_ || made_ > 0;
  }();
  if (rank_ != 0 || !has_failed) {
    return;
  }
  asking_->wait_for_acknowledgements(num_replies_, kAcknowledgeTimeout);
}

// Counts this rank, once, among those that know why a collective failed.
void Watchdog::acknowledge_failure(StatusExchange& status_exchange) {
  if (!has_acknowledged_.exchange(true)) {
    status_exchange.acknowledge_failure();
  }
}

void Watchdog::add(
    const std::string& key,
    const std::shared_ptr<GroupState>& group) {
  groups_.add(key, group);
  const auto diagnosis = [&] {
    const std::lock_guard lock(mutex_);
    return diagnosis_;
  }();
  if (diagnosis) {
    group->fail(diagnosis->failure());
  }
}

// Collectives of other ranks fail when this rank hangs up. Those ranks then ask
// why, and find this diagnosis.
GroupFailure Watchdog::publish_failure(const GroupFailure& failure) {
  HangDiagnosis diagnosis{failure.reason, failure.is_disagreement};
  try {
    auto status_exchange = status_exchange_.clone();
    diagnosis = status_exchange.publish_diagnosis(diagnosis);
    acknowledge_failure(status_exchange);
  } catch (const std::exception&) {
    // The store is gone. The other ranks find only that this rank is gone.
  }
  take(diagnosis);
  return diagnosis.failure();
}

void Watchdog::record_step_error(
    std::string_view what,
    const std::exception_ptr& cause) {
  auto text = message_of(cause);
  auto positions = groups_.positions();
  const std::lock_guard lock(mutex_);
  // An inner part that this exception left has already recorded it.
  if (has_step_error_ && step_error_.positions == positions &&
      step_error_.text.ends_with(text)) {
    return;
  }
  step_error_ = {
      detail::concat(what, " by an exception: ", text),
      flight_recorder_now_ns(),
      std::move(positions)};
  has_step_error_ = true;
}

GroupFailure Watchdog::explain(const GroupFailure& failure) {
  Lock lock(mutex_);
  wants_stacks_ = wants_stacks_ || failure.is_timeout;
  const uint64_t own = ++wanted_;
  changed_.notify_all();
  changed_.wait_for(lock, kExplainLimit, [&] {
    return diagnosis_ || made_ >= own || is_over_ || store_is_gone_;
  });
  if (diagnosis_) {
    return diagnosis_->failure();
  }
  auto result = failure;
  // Only the store can delay an inquiry for so long.
  const auto more = made_ >= own || store_is_gone_
                        ? waiting_for_
                        : store_owner_text(store_owner_);
  if (!more.empty()) {
    result.reason += ". " + more;
  }
  return result;
}

RankStatus Watchdog::status() const {
  RankStatus result;
  result.rank = rank_;
  result.activity = activity_text();
  result.groups = groups_.statuses();
  if (has_step_error_) {
    const std::lock_guard lock(mutex_);
    result.step_error = step_error_.text;
    result.step_error_ns = step_error_.at_ns;
    for (auto& group : result.groups) {
      const auto position = step_error_.positions.find(group.key);
      group.sequence_at_error = position == step_error_.positions.end()
                                    ? -1
                                    : static_cast<int64_t>(position->second);
    }
  }
  result.now_ns = flight_recorder_now_ns();
  return result;
}

// The listener.

void Watchdog::listen() {
  pthread_setname_np(pthread_self(), "weft_listen");
  try {
    auto status_exchange = status_exchange_.clone();
    status_exchange.publish_process();
    for (uint64_t round = 0;; ++round) {
      const auto query = status_exchange.wait_for_query(round);
      if (!begin_reply(query)) {
        return;
      }
      status_exchange.reply(round, status());
      start_background_work(query);
      adopt_published_diagnosis(status_exchange);
    }
  } catch (const std::exception&) {
    // The store is gone, so no rank can ask.
    const std::lock_guard lock(mutex_);
    store_is_gone_ = true;
    waiting_for_ = kStoreIsGone;
    changed_.notify_all();
  }
}

// Starts work that takes long on other threads, because other ranks wait for
// this rank's next reply. Each kind runs once: collectives after the first
// failure are of no interest.
void Watchdog::start_background_work(const std::string& query) {
  if (query != kStalled && query != kWarned) {
    start_flight_record();
  }
  const auto own = " " + std::to_string(rank_) + " ";
  if (query.starts_with(kStacks) && query.find(own) != query.npos &&
      !std::exchange(has_shown_stacks_, true)) {
    spawn_thread(&Watchdog::writing_threads_, &Watchdog::show_stacks);
  }
}

void Watchdog::start_flight_record() {
  const auto prefix = flight_record_prefix(options_.flight_record);
  if (prefix.empty() || has_record_.exchange(true)) {
    return;
  }
  spawn_thread(
      &Watchdog::writing_threads_,
      [prefix, records = groups_.records()](Watchdog& watch) {
        dump_flight_record(prefix, records, watch.rank_);
      });
}

void Watchdog::dump_flight_record(
    const std::string& prefix,
    const std::vector<GroupRecord>& records,
    int64_t rank) {
  try {
    write_flight_record(records, rank, prefix);
  } catch (const std::exception& error) {
    rank_logger(rank).warning(std::string("op=flight_record ") + error.what());
  }
}

void Watchdog::show_stacks() {
  auto stacks = thread_stacks();
  while (stacks.ends_with('\n')) {
    stacks.pop_back();
  }
  rank_logger(rank_).warning(
      "is awaited and does not respond; its threads:\n" + stacks);
}

// Counts the inquiry before the reply, because a rank that has the reply may
// ask again. Returns false if the watchdog has ended.
bool Watchdog::begin_reply(const std::string& query) {
  const std::lock_guard lock(mutex_);
  ++round_;
  answered_at_ = WatchClock::now();
  if (query == kWarned) {
    warned_at_ = answered_at_;
  }
  return !is_over_;
}

void Watchdog::adopt_published_diagnosis(StatusExchange& status_exchange) {
  if (const auto diagnosis = status_exchange.diagnosis()) {
    take(*diagnosis);
    acknowledge_failure(status_exchange);
  }
}

void Watchdog::take(const HangDiagnosis& diagnosis) {
  {
    const std::lock_guard lock(mutex_);
    diagnosis_ = diagnosis;
    changed_.notify_all();
  }
  groups_.fail(diagnosis.failure());
}

} // namespace weft::mesh
