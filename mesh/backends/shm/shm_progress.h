#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mesh/backends/shm/shm_group.h"

namespace weft::mesh {

// Note [Shared-memory progress]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Starting a collective writes what fits into this rank's slot and returns. The
// rest is done by the one that waits for any collective of this rank: it moves
// all that are under way on, in each group the oldest. So no rank blocks on one
// group while another group needs it, whatever the order in which ranks wait,
// and the ranks' own threads do the work. One more thread looks after what
// nobody waits for: often where there are cores to spare, so that collectives
// and arithmetic overlap; seldom where it would take the ranks' own.

/// The running operations of one rank in all its shared memory groups.
/// Thread-safe.
class ShmProgress {
 public:
  /// `local_ranks` is the number of ranks that share `cores` cores of this
  /// host.
  ShmProgress(int64_t local_ranks, int64_t cores);
  ~ShmProgress();
  ShmProgress(const ShmProgress&) = delete;
  ShmProgress& operator=(const ShmProgress&) = delete;

  const ShmDoorbell& doorbell() const { return doorbell_; }

  std::shared_ptr<ShmOperation> start(
      ShmGroup& group,
      std::unique_ptr<ShmCall> call);
  /// Blocks until the operation is complete.
  /// Throws: CommError if it failed.
  void wait(ShmOperation& operation);
  /// Advances all operations and returns true if this one is complete.
  bool is_done(const ShmOperation& operation);
  /// Registers a completion callback. Returns false, and never calls it, if the
  /// operation is already complete.
  bool when_done(ShmOperation& operation, std::function<void()> callback);
  /// Fails the running operations of `group` on this rank and on its peers.
  void abort(ShmGroup& group, const std::string& reason);
  /// Releases a group that is no longer used.
  void forget(ShmGroup& group);

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool progress();
  void check_peers();
  void fail(ShmGroup& group, const std::string& reason);
  void poll(Lock& lock, ShmOperation& operation);
  void sleep(Lock& lock);
  bool has_left_peer() const;
  void set_asleep(bool asleep);
  void wake_progress_thread();
  void run_progress_thread();

  ShmDoorbell doorbell_;
  int64_t local_ranks_;
  int64_t cores_;

  std::mutex mutex_;
  /// The groups with running operations.
  std::vector<ShmGroup*> active_;
  /// The time of the next check that the peers are alive.
  std::chrono::steady_clock::time_point next_check_;
  /// True while a waiting thread polls for all. The other waiting threads are
  /// followers.
  bool is_polled_ = false;
  bool is_asleep_ = false;
  int followers_ = 0;
  std::condition_variable followed_;

  std::thread progress_thread_;
  /// True while the progress thread waits for work rather than for a timeout.
  bool is_progress_thread_idle_ = false;
  bool is_over_ = false;
  std::condition_variable progress_needed_;
};

/// While it lives, a thread of this process works beside those of the ranks:
/// where the cores are too few for one more, threads that wait for a peer leave
/// theirs at once.
class ExtraThread {
 public:
  ExtraThread();
  ~ExtraThread();
  ExtraThread(const ExtraThread&) = delete;
  ExtraThread& operator=(const ExtraThread&) = delete;
};

} // namespace weft::mesh
