#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "mesh/watchdog/hang_diagnosis.h"
#include "mesh/watchdog/rank_status.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// Where ranks ask and answer each other: keys of the store. Inquiries have
/// numbers, from 0, and each rank hears all of them in order. One thread at a
/// time; a thread that waits in a board needs one of its own, over a clone of
/// the store.
/// Throws, in every method: std::exception if the store is gone.
class StatusExchange {
 public:
  StatusExchange(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size);
  int64_t world_size() const { return world_size_; }
  /// The same board, for another thread.
  StatusExchange clone() const;

  /// Says which process this rank is.
  void publish_process();
  /// Blocks until that rank has said so.
  std::string process_of(int64_t rank);

  /// Blocks until somebody asks as number `round`; returns what.
  std::string wait_for_query(uint64_t round);
  void reply(uint64_t round, const RankStatus& status);

  /// How long answers may take.
  struct ReplyTimeouts {
    std::chrono::milliseconds least;
    /// Where a rank is silent whose process is not known to be gone or stopped.
    std::chrono::milliseconds most;
    /// From then on a tenth of a second.
    std::function<bool()> is_urgent;
  };
  /// Asks all ranks, this one too, as number `round`. Answers are by rank.
  std::vector<RankReply>
  ask(uint64_t round, const std::string& query, const ReplyTimeouts& patience);
  /// Wakes all listeners with a question.
  void notify(uint64_t round, const std::string& query);
  /// Wakes this rank's own.
  void notify_self(uint64_t round, const std::string& query);

  /// Leaves a verdict, unless there is one. Returns the one that counts.
  HangDiagnosis publish_diagnosis(const HangDiagnosis& diagnosis);
  std::optional<HangDiagnosis> diagnosis();
  /// Counts a rank that knows why a collective has failed.
  void acknowledge_failure();
  /// Waits until so many have been counted, for `limit` at most.
  void wait_for_acknowledgements(
      int64_t count,
      std::chrono::milliseconds limit);

  /// This rank has ended all it had to do, and answers no more.
  void end(const RankStatus& last);

 private:
  bool all_come(
      const std::vector<std::string>& keys,
      std::chrono::milliseconds limit,
      const std::function<bool()>& is_urgent);
  bool has_silent_rank(const std::vector<std::string>& keys);
  RankReply reply_at(const std::string& key);
  RankReply absent_reply(int64_t rank);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  int64_t world_size_;
};

} // namespace weft::mesh
