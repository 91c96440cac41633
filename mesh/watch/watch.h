#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "mesh/watch/options.h"
#include "mesh/watch/rank_sight.h"
#include "mesh/watch/verdict.h"
#include "mesh/work.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

// Note [How ranks find out]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Each rank has two threads. One listens: it sleeps in the store until somebody
// asks, and answers with what its ledgers say. The other looks at its own
// ledgers; when a thread of this rank has waited for long, or a collective has
// failed, it asks all ranks at once and compares the answers (verdict.h). If
// ranks called different things, or wait for each other in a circle, it leaves
// the verdict in the store and rings again: every rank's listener then fails
// all its groups with it. While nobody waits, nothing is sent.

/// Looks after one rank's groups. Thread-safe.
class Watch {
 public:
  /// `store` is cloned: a thread that waits in it must not keep others out.
  Watch(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size,
      WatchOptions options);
  /// Tells the others that this rank waits for nothing any more.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// From now on `group`, which all its members know as `key`, is looked at.
  void add(const std::string& key, const std::shared_ptr<GroupState>& group);

  /// Why a collective has really failed, if the ranks can find out in about a
  /// second, else `failure` with what is known of the others.
  GroupFailure explain(const GroupFailure& failure);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Groups = std::vector<std::pair<std::string, std::weak_ptr<GroupState>>>;

  void listen();
  void take(const Verdict& verdict);
  void look();
  std::chrono::nanoseconds longest_wait() const;
  void inquire(Lock& lock, const char* question);
  void judge(const std::vector<RankAnswer>& answers);
  std::vector<RankAnswer> ask(
      const std::string& question,
      std::chrono::milliseconds limit);
  uint64_t ring(const std::string& question);
  RankAnswer came(const std::string& from);
  RankAnswer absent(int64_t rank);
  void announce(const Verdict& verdict);
  bool is_sound() const;
  void let_others_hear();
  void warn(
      const std::vector<RankAnswer>& answers,
      const std::string& whereabouts);
  Groups groups() const;
  RankSight sight() const;
  std::string key(const char* what, uint64_t round, int64_t rank) const;

  const int64_t rank_;
  const int64_t world_size_;
  const WatchOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Groups groups_;
  bool is_over_ = false;
  /// The inquiry that this rank answers next, and the newest that it made.
  uint64_t round_ = 0;
  uint64_t rung_ = 0;
  /// When this rank last answered.
  std::chrono::steady_clock::time_point answered_at_;
  /// Threads in explain() want this many inquiries to have been made.
  uint64_t wanted_ = 0;
  uint64_t made_ = 0;
  /// How long a wait has to be to be looked into next, and to be told.
  std::chrono::nanoseconds next_look_;
  std::optional<Verdict> verdict_;
  /// What the newest inquiry found out about the others' whereabouts.
  std::string whereabouts_;

  // Used by the thread that looks alone.
  std::chrono::nanoseconds next_warning_;
  /// A circle of waiting ranks seen by the inquiry before.
  std::string circle_;
  c10::intrusive_ptr<c10d::Store> asking_;
  std::thread listener_;
  std::thread looker_;
};

} // namespace weft::mesh
