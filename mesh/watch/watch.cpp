#include "mesh/watch/watch.h"

#include <algorithm>
#include <cstdio>
#include <exception>

#include <pthread.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/error.h"
#include "mesh/failure.h"
#include "mesh/watch/activity.h"
#include "mesh/watch/peer_process.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using WatchClock = std::chrono::steady_clock;

constexpr milliseconds kGlance{100};
constexpr auto kListenAtMost = std::chrono::hours(1);
/// How long answers may take: of ranks that all wait, and after a failure,
/// when one that does not answer may be the reason.
constexpr milliseconds kPatientLimit{1000};
constexpr milliseconds kFailedLimit{400};
/// Of two ranks that wait, the first asks first.
constexpr milliseconds kStagger{20};
constexpr int64_t kMostStagger = 10;
constexpr nanoseconds kLongestPause = std::chrono::seconds(10);
constexpr size_t kEntriesTold = 16;
/// Whoever reads answers reads none that is older.
constexpr uint64_t kRoundsKept = 16;

constexpr const char* kVerdictKey = "verdict";
constexpr const char* kSeenKey = "seen";
constexpr const char* kEndedKey = "ended";
constexpr const char* kStalled = "stalled";
constexpr const char* kFailed = "failed";
constexpr const char* kLook = "look";
constexpr const char* kBye = "bye";

std::vector<uint8_t> bytes_from(const std::string& text) {
  return {text.begin(), text.end()};
}

void name_this_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

} // namespace

Watch::Watch(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size,
    WatchOptions options)
    : rank_(rank),
      world_size_(world_size),
      options_(std::move(options)),
      store_(std::move(store)),
      next_look_(options_.stall),
      next_warning_(options_.warn_after) {
  listener_ = std::thread([this] { listen(); });
  looker_ = std::thread([this] { look(); });
}

Watch::~Watch() {
  auto last = sight();
  last.has_ended = std::uncaught_exceptions() == 0 && is_sound();
  uint64_t round = 0;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    round = round_;
    changed_.notify_all();
  }
  looker_.join();
  try {
    let_others_hear();
    if (last.has_ended) {
      store_->set(key("ended", 0, rank_), to_text(last));
      store_->add(kEndedKey, 1);
    }
    store_->set(key("ask", round, rank_), std::string(kBye));
  } catch (const std::exception&) {
    // The store has gone, and the listener knows.
  }
  listener_.join();
}

/// No group has failed.
bool Watch::is_sound() const {
  return std::ranges::all_of(groups(), [](const auto& entry) {
    const auto group = entry.second.lock();
    return !group || group->failure().reason.empty();
  });
}

/// Rank 0 takes the store with it.
void Watch::let_others_hear() {
  if (rank_ != 0 || !verdict_) {
    return;
  }
  const auto deadline = WatchClock::now() + kFailedLimit;
  while (store_->add(kSeenKey, 0) < world_size_ &&
         WatchClock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
}

void Watch::add(
    const std::string& key,
    const std::shared_ptr<GroupState>& group) {
  std::optional<Verdict> verdict;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& g) { return g.second.expired(); });
    groups_.emplace_back(key, group);
    verdict = verdict_;
  }
  if (verdict) {
    group->fail({verdict->sentence, true});
  }
}

GroupFailure Watch::explain(const GroupFailure& failure) {
  Lock lock(mutex_);
  const uint64_t own = ++wanted_;
  changed_.notify_all();
  changed_.wait_for(lock, 3 * kFailedLimit, [&] {
    return verdict_ || made_ >= own || is_over_;
  });
  if (verdict_) {
    return {verdict_->sentence, true};
  }
  auto result = failure;
  if (!whereabouts_.empty()) {
    result.reason += ". " + whereabouts_;
  }
  return result;
}

std::string Watch::key(const char* what, uint64_t round, int64_t rank) const {
  return detail::concat(what, "/", round, "/", rank);
}

Watch::Groups Watch::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

RankSight Watch::sight() const {
  RankSight result;
  result.rank = rank_;
  result.activity = activity_text();
  for (const auto& [key, weak] : groups()) {
    if (const auto group = weak.lock()) {
      const auto& members = group->backend->members();
      result.groups.push_back(
          {.key = key,
           .name = members.name,
           .ranks = members.ranks,
           .next_sequence = group->ledger->next_sequence(),
           .entries = group->ledger->newest(kEntriesTold)});
    }
  }
  result.now_ns = ledger_now_ns();
  return result;
}

// The listener.

void Watch::listen() {
  name_this_thread("weft_listen");
  try {
    const auto store = store_->clone();
    store->set(key("process", 0, rank_), own_process_text());
    while (true) {
      const auto round = [&] {
        const std::lock_guard lock(mutex_);
        return round_;
      }();
      const auto rung = key("ask", round, rank_);
      store->wait({rung}, kListenAtMost);
      const auto question = store->get_to_str(rung);
      {
        const std::lock_guard lock(mutex_);
        if (is_over_) {
          return;
        }
        // Before the answer: who has it may ask again.
        ++round_;
        answered_at_ = WatchClock::now();
      }
      store->set(key("answer", round, rank_), to_text(sight()));
      if (round >= kRoundsKept) {
        store->deleteKey(key("ask", round - kRoundsKept, rank_));
        store->deleteKey(key("answer", round - kRoundsKept, rank_));
      }
      if (store->check({kVerdictKey})) {
        take({store->get_to_str(kVerdictKey)});
        store->add(kSeenKey, 1);
      }
    }
  } catch (const std::exception&) {
    // The store is gone, and whoever had it: nobody asks any more.
  }
}

void Watch::take(const Verdict& verdict) {
  {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
    changed_.notify_all();
  }
  for (const auto& [key, weak] : groups()) {
    if (const auto group = weak.lock()) {
      group->fail({verdict.sentence, true});
    }
  }
}

// The one that looks.

void Watch::look() {
  name_this_thread("weft_watch");
  const auto stagger = std::min(rank_, kMostStagger) * kStagger;
  Lock lock(mutex_);
  while (true) {
    changed_.wait_for(
        lock, kGlance, [&] { return is_over_ || wanted_ > made_; });
    if (is_over_) {
      return;
    }
    if (wanted_ > made_) {
      inquire(lock, kFailed);
      continue;
    }
    lock.unlock();
    const auto waited = longest_wait();
    lock.lock();
    if (waited < options_.stall) {
      next_look_ = options_.stall;
      next_warning_ = options_.warn_after;
      circle_.clear();
    } else if (!verdict_ && waited >= next_look_ + stagger) {
      // Another's inquiry a moment ago has told that one enough.
      if (WatchClock::now() - answered_at_ > options_.stall / 2) {
        inquire(lock, kStalled);
      }
      next_look_ = waited + std::clamp<nanoseconds>(
                                waited / 2, options_.stall, kLongestPause);
    }
  }
}

nanoseconds Watch::longest_wait() const {
  const int64_t now_ns = ledger_now_ns();
  int64_t longest_ns = 0;
  for (const auto& [key, weak] : groups()) {
    if (const auto group = weak.lock()) {
      const int64_t since_ns = group->ledger->waiting_since_ns();
      longest_ns = std::max(longest_ns, since_ns > 0 ? now_ns - since_ns : 0);
    }
  }
  return nanoseconds(longest_ns);
}

void Watch::inquire(Lock& lock, const char* question) {
  const uint64_t wanted = wanted_;
  lock.unlock();
  std::string whereabouts;
  try {
    const auto answers =
        ask(question, question == kFailed ? kFailedLimit : kPatientLimit);
    judge(answers);
    whereabouts = describe_wait(answers, rank_);
    warn(answers, whereabouts);
  } catch (const std::exception&) {
    whereabouts = "The store does not answer: rank 0 may have ended";
  }
  lock.lock();
  whereabouts_ = std::move(whereabouts);
  made_ = std::max(made_, wanted);
  changed_.notify_all();
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
    announce(*verdict);
  }
}

std::vector<RankAnswer> Watch::ask(
    const std::string& question,
    milliseconds limit) {
  if (!asking_) {
    asking_ = store_->clone();
  }
  const auto round = ring(question);
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    keys.push_back(key("answer", round, rank));
  }
  bool all_came = true;
  try {
    asking_->wait(keys, limit);
  } catch (const std::exception&) {
    all_came = false;
  }
  const bool some_ended = asking_->add(kEndedKey, 0) > 0;
  std::vector<RankAnswer> answers;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    const auto& from = keys[static_cast<size_t>(rank)];
    // One that has ended may have answered just before.
    const auto ended = key("ended", 0, rank);
    if (some_ended && asking_->check({ended})) {
      answers.push_back(came(ended));
    } else {
      answers.push_back(
          all_came || asking_->check({from}) ? came(from) : absent(rank));
    }
  }
  return answers;
}

RankAnswer Watch::came(const std::string& from) {
  return {true, rank_sight_from(asking_->get_to_str(from)), {}};
}

/// Wakes all listeners; returns the number of the inquiry.
uint64_t Watch::ring(const std::string& question) {
  const auto round = [&] {
    const std::lock_guard lock(mutex_);
    return rung_ = std::max(round_, rung_);
  }();
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    keys.push_back(key("ask", round, rank));
  }
  asking_->multiSet(keys, std::vector(keys.size(), bytes_from(question)));
  return round;
}

RankAnswer Watch::absent(int64_t rank) {
  RankAnswer answer;
  answer.sight.rank = rank;
  const auto process = key("process", 0, rank);
  if (asking_->check({process})) {
    answer.absence = peer_process_text(asking_->get_to_str(process));
  }
  return answer;
}

/// Tells all ranks; the first verdict of all counts.
void Watch::announce(const Verdict& verdict) {
  const auto first =
      asking_->compareSet(kVerdictKey, {}, bytes_from(verdict.sentence));
  {
    const std::lock_guard lock(mutex_);
    ++rung_;
  }
  ring(kLook);
  take({std::string(first.begin(), first.end())});
}

void Watch::warn(
    const std::vector<RankAnswer>& answers,
    const std::string& whereabouts) {
  const auto waited = longest_wait();
  if (whereabouts.empty() || waited < next_warning_) {
    return;
  }
  next_warning_ = 2 * waited;
  // One of those that wait is enough.
  const auto is_first = std::ranges::none_of(answers, [&](const auto& answer) {
    return answer.sight.rank < rank_ && answer.came &&
           describe_wait(answers, answer.sight.rank) == whereabouts;
  });
  if (is_first) {
    std::fprintf(
        stderr,
        "WARNING rank=%lld op=watch %s\n",
        static_cast<long long>(rank_),
        whereabouts.c_str());
  }
}

} // namespace weft::mesh
