#include "mesh/watchdog/status_exchange.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/bootstrap/cancellable_store.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/peer_process.h"

namespace weft::mesh {
namespace {

constexpr auto kListenAtMost = std::chrono::hours(24);
/// The interval at which a rank that waits for replies checks whether to give
/// up.
constexpr auto kAnswerGlance = std::chrono::milliseconds(100);
/// The number of rounds whose keys stay in the store. No rank reads the replies
/// of older rounds.
constexpr uint64_t kRoundsKept = 16;

constexpr const char* kVerdict = "verdict";
constexpr char kDisagreement = 'd';
constexpr char kLoss = 'l';
constexpr const char* kAcknowledged = "heard";
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

std::string to_text(const HangDiagnosis& diagnosis) {
  return (diagnosis.is_disagreement ? kDisagreement : kLoss) +
         diagnosis.sentence;
}

HangDiagnosis verdict_from(const std::string& text) {
  return {text.substr(1), text.starts_with(kDisagreement)};
}

} // namespace

StatusExchange::StatusExchange(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size)
    : store_(std::move(store)), rank_(rank), world_size_(world_size) {}

StatusExchange StatusExchange::clone() const {
  return {store_->clone(), rank_, world_size_};
}

void StatusExchange::publish_process() {
  store_->set(process_key(rank_), current_process_text());
}

std::string StatusExchange::process_of(int64_t rank) {
  return store_->get_to_str(process_key(rank));
}

std::string StatusExchange::wait_for_query(uint64_t round) {
  const auto key = question_key(round, rank_);
  store_->wait({key}, kListenAtMost);
  return store_->get_to_str(key);
}

void StatusExchange::reply(uint64_t round, const RankStatus& status) {
  store_->set(answer_key(round, rank_), to_text(status));
  if (round >= kRoundsKept) {
    store_->deleteKey(question_key(round - kRoundsKept, rank_));
    store_->deleteKey(answer_key(round - kRoundsKept, rank_));
  }
}

std::vector<RankReply> StatusExchange::ask(
    uint64_t round,
    const std::string& query,
    const ReplyTimeouts& patience) {
  notify(round, query);
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    keys.push_back(answer_key(round, rank));
  }
  const auto more = patience.most - patience.least;
  const bool all_came = all_come(keys, patience.least, patience.is_urgent) ||
                        (more.count() > 0 && has_silent_rank(keys) &&
                         all_come(keys, more, patience.is_urgent));
  const bool some_ended = store_->add(kEnded, 0) > 0;
  std::vector<RankReply> replies;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    const auto& key = keys[static_cast<size_t>(rank)];
    // The last status of a rank that has ended is newer than its reply.
    if (some_ended && store_->check({ended_key(rank)})) {
      replies.push_back(reply_at(ended_key(rank)));
    } else {
      replies.push_back(
          all_came || store_->check({key}) ? reply_at(key)
                                           : absent_reply(rank));
    }
  }
  return replies;
}

void StatusExchange::notify(uint64_t round, const std::string& query) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    keys.push_back(question_key(round, rank));
  }
  store_->multiSet(keys, std::vector(keys.size(), bytes_from(query)));
}

void StatusExchange::notify_self(uint64_t round, const std::string& query) {
  store_->set(question_key(round, rank_), query);
}

HangDiagnosis StatusExchange::publish_diagnosis(
    const HangDiagnosis& diagnosis) {
  const auto counts =
      store_->compareSet(kVerdict, {}, bytes_from(to_text(diagnosis)));
  return verdict_from({counts.begin(), counts.end()});
}

std::optional<HangDiagnosis> StatusExchange::diagnosis() {
  if (!store_->check({kVerdict})) {
    return std::nullopt;
  }
  return verdict_from(store_->get_to_str(kVerdict));
}

void StatusExchange::acknowledge_failure() {
  store_->add(kAcknowledged, 1);
}

void StatusExchange::wait_for_acknowledgements(
    int64_t count,
    std::chrono::milliseconds limit) {
  await_count(*store_, kAcknowledged, count, limit);
}

void StatusExchange::end(const RankStatus& last) {
  store_->set(ended_key(rank_), to_text(last));
  store_->add(kEnded, 1);
}

bool StatusExchange::all_come(
    const std::vector<std::string>& keys,
    std::chrono::milliseconds limit,
    const std::function<bool()>& is_urgent) {
  using WaitClock = std::chrono::steady_clock;
  const auto deadline = WaitClock::now() + limit;
  while (true) {
    const auto end = std::min(deadline, WaitClock::now() + kAnswerGlance);
    try {
      // 0 would mean no timeout.
      store_->wait(
          keys,
          std::max(
              std::chrono::ceil<std::chrono::milliseconds>(
                  end - WaitClock::now()),
              std::chrono::milliseconds(1)));
      return true;
    } catch (const std::exception&) {
      // If the wait fails early, the store is gone, and its next use throws.
      if (WaitClock::now() < end || end == deadline || is_urgent()) {
        return false;
      }
    }
  }
}

// Returns true if a rank without a reply may only be slow, because its process
// is not known to be gone or stopped.
bool StatusExchange::has_silent_rank(const std::vector<std::string>& keys) {
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    if (!store_->check({keys[static_cast<size_t>(rank)]}) &&
        absent_reply(rank).absence_reason.empty()) {
      return true;
    }
  }
  return false;
}

RankReply StatusExchange::reply_at(const std::string& key) {
  return {true, parse_rank_status(store_->get_to_str(key)), {}};
}

RankReply StatusExchange::absent_reply(int64_t rank) {
  RankReply reply;
  reply.status.rank = rank;
  if (store_->check({process_key(rank)})) {
    reply.absence_reason =
        peer_process_text(store_->get_to_str(process_key(rank)));
  }
  return reply;
}

} // namespace weft::mesh
