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

/// The ranks' inquiries and replies, as keys of the store. Inquiries are
/// numbered from 0, and every rank handles all of them in order. Not
/// thread-safe: a thread that blocks in it needs a clone with its own store
/// client.
/// Throws, in every method: std::exception if the store is gone.
class StatusExchange {
 public:
  StatusExchange(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size);
  int64_t world_size() const { return world_size_; }
  /// Returns the same exchange for another thread.
  StatusExchange clone() const;

  /// Publishes the process of this rank.
  void publish_process();
  /// Blocks until `rank` has published its process, and returns it.
  std::string process_of(int64_t rank);

  /// Blocks until a rank makes inquiry `round`, and returns the query.
  std::string wait_for_query(uint64_t round);
  void reply(uint64_t round, const RankStatus& status);

  /// The timeouts of replies.
  struct ReplyTimeouts {
    std::chrono::milliseconds least;
    /// The timeout for a rank whose process is not known to be gone or stopped.
    std::chrono::milliseconds most;
    /// Once this returns true, the timeout is 100 ms.
    std::function<bool()> is_urgent;
  };
  /// Asks all ranks, including this one, as inquiry `round`. Returns the
  /// replies by rank.
  std::vector<RankReply>
  ask(uint64_t round, const std::string& query, const ReplyTimeouts& patience);
  /// Wakes the listeners of all ranks with a query that needs no reply.
  void notify(uint64_t round, const std::string& query);
  /// Wakes this rank's own listener.
  void notify_self(uint64_t round, const std::string& query);

  /// Publishes a diagnosis unless there is one. Returns the published one.
  HangDiagnosis publish_diagnosis(const HangDiagnosis& diagnosis);
  std::optional<HangDiagnosis> diagnosis();
  /// Counts this rank among those that know the cause of a failed collective.
  void acknowledge_failure();
  /// Waits until `count` ranks have been counted, at most for `limit`.
  void wait_for_acknowledgements(
      int64_t count,
      std::chrono::milliseconds limit);

  /// Publishes this rank's last status. It sends no replies afterwards.
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
