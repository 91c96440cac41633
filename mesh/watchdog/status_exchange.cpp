#include "mesh/watchdog/status_exchange.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/bootstrap/await_count.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/peer_process.h"

namespace weft::mesh {
namespace {

constexpr auto kListenAtMost = std::chrono::hours(24);
/// How often one that waits for answers looks whether they are still worth it.
constexpr auto kAnswerGlance = std::chrono::milliseconds(100);
/// Whoever reads answers reads none that is older.
constexpr uint64_t kRoundsKept = 16;

constexpr const char* kVerdict = "verdict";
constexpr char kDisagreement = 'd';
constexpr char kLoss = 'l';
constexpr const char* kHeard = "heard";
constexpr const char* kEnded = "ended";

std::string process_key(int64_t rank) {
  return detail::concat("process/", rank);
}

std::string ended_key(int64_t rank) {
  return detail::concat("ended/", rank);
}

std::string question_key(uint64_t round, int64_t rank) {
  return detail::concat("question/", round, "/", rank);
}

std::string answer_key(uint64_t round, int64_t rank) {
  return detail::concat("answer/", round, "/", rank);
}

std::vector<uint8_t> bytes_from(const std::string& text) {
  return {text.begin(), text.end()};
}

// The kind, then the sentence.
std::string to_text(const Verdict& verdict) {
  return (verdict.is_disagreement ? kDisagreement : kLoss) + verdict.sentence;
}

Verdict verdict_from(const std::string& text) {
  return {text.substr(1), text.starts_with(kDisagreement)};
}

} // namespace

NoticeBoard::NoticeBoard(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size)
    : store_(std::move(store)), rank_(rank), world_size_(world_size) {}

NoticeBoard NoticeBoard::clone() const {
  return {store_->clone(), rank_, world_size_};
}

void NoticeBoard::introduce() {
  store_->set(process_key(rank_), own_process_text());
}

std::string NoticeBoard::process_of(int64_t rank) {
  return store_->get_to_str(process_key(rank));
}

std::string NoticeBoard::await_question(uint64_t round) {
  const auto key = question_key(round, rank_);
  store_->wait({key}, kListenAtMost);
  return store_->get_to_str(key);
}

void NoticeBoard::answer(uint64_t round, const RankSight& sight) {
  store_->set(answer_key(round, rank_), to_text(sight));
  if (round >= kRoundsKept) {
    store_->deleteKey(question_key(round - kRoundsKept, rank_));
    store_->deleteKey(answer_key(round - kRoundsKept, rank_));
  }
}

std::vector<RankAnswer> NoticeBoard::ask(
    uint64_t round,
    const std::string& question,
    const Patience& patience) {
  ring(round, question);
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    keys.push_back(answer_key(round, rank));
  }
  const auto more = patience.most - patience.least;
  const bool all_came = all_come(keys, patience.least, patience.is_urgent) ||
                        (more.count() > 0 && has_silent_rank(keys) &&
                         all_come(keys, more, patience.is_urgent));
  const bool some_ended = store_->add(kEnded, 0) > 0;
  std::vector<RankAnswer> answers;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    const auto& key = keys[static_cast<size_t>(rank)];
    // One that has ended may have answered just before.
    if (some_ended && store_->check({ended_key(rank)})) {
      answers.push_back(answer_at(ended_key(rank)));
    } else {
      answers.push_back(
          all_came || store_->check({key}) ? answer_at(key) : absent(rank));
    }
  }
  return answers;
}

void NoticeBoard::ring(uint64_t round, const std::string& question) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    keys.push_back(question_key(round, rank));
  }
  store_->multiSet(keys, std::vector(keys.size(), bytes_from(question)));
}

void NoticeBoard::ring_self(uint64_t round, const std::string& question) {
  store_->set(question_key(round, rank_), question);
}

Verdict NoticeBoard::leave_verdict(const Verdict& verdict) {
  const auto counts =
      store_->compareSet(kVerdict, {}, bytes_from(to_text(verdict)));
  return verdict_from({counts.begin(), counts.end()});
}

std::optional<Verdict> NoticeBoard::verdict() {
  if (!store_->check({kVerdict})) {
    return std::nullopt;
  }
  return verdict_from(store_->get_to_str(kVerdict));
}

void NoticeBoard::note_heard() {
  store_->add(kHeard, 1);
}

void NoticeBoard::await_heard(int64_t count, std::chrono::milliseconds limit) {
  await_count(*store_, kHeard, count, limit);
}

void NoticeBoard::end(const RankSight& last) {
  store_->set(ended_key(rank_), to_text(last));
  store_->add(kEnded, 1);
}

bool NoticeBoard::all_come(
    const std::vector<std::string>& keys,
    std::chrono::milliseconds limit,
    const std::function<bool()>& is_urgent) {
  using WaitClock = std::chrono::steady_clock;
  const auto deadline = WaitClock::now() + limit;
  while (true) {
    const auto end = std::min(deadline, WaitClock::now() + kAnswerGlance);
    try {
      store_->wait(
          keys,
          std::chrono::ceil<std::chrono::milliseconds>(end - WaitClock::now()));
      return true;
    } catch (const std::exception&) {
      // Before its time: the store is gone, as the next to use it will find.
      if (WaitClock::now() < end || end == deadline || is_urgent()) {
        return false;
      }
    }
  }
}

// One that may only be slow.
bool NoticeBoard::has_silent_rank(const std::vector<std::string>& keys) {
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    if (!store_->check({keys[static_cast<size_t>(rank)]}) &&
        absent(rank).absence.empty()) {
      return true;
    }
  }
  return false;
}

RankAnswer NoticeBoard::answer_at(const std::string& key) {
  return {true, rank_sight_from(store_->get_to_str(key)), {}};
}

RankAnswer NoticeBoard::absent(int64_t rank) {
  RankAnswer answer;
  answer.sight.rank = rank;
  if (store_->check({process_key(rank)})) {
    answer.absence = peer_process_text(store_->get_to_str(process_key(rank)));
  }
  return answer;
}

} // namespace weft::mesh
