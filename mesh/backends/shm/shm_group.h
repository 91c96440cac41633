#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "mesh/backends/shm/shm_call.h"
#include "mesh/backends/shm/shm_segment.h"

namespace weft::mesh {

/// A call under way, and how far it is.
struct ShmOperation {
  std::unique_ptr<ShmCall> call;
  uint64_t sequence = 0;
  std::chrono::steady_clock::time_point deadline;
  uint64_t rounds = 1;
  /// Of these, how many this rank has written, and read.
  uint64_t written = 0;
  uint64_t read = 0;
  /// What to tell when it is over.
  std::function<void()> callback;
  /// Why it has no result; set before `done`.
  std::string failure;
  std::atomic<bool> done = false;
};

/// One group's calls, the oldest first. Not thread-safe.
class ShmGroup {
 public:
  /// Collective: the group's members, all on one host; blocks.
  ShmGroup(
      const GroupMembers& members,
      const c10::intrusive_ptr<c10d::Store>& store,
      const ShmDoorbell& own_doorbell);

  ShmShape shape() const { return shape_; }
  const ShmSegment& segment() const { return segment_; }
  bool is_idle() const { return queue_.empty(); }

  std::shared_ptr<ShmOperation> push(std::unique_ptr<ShmCall> call);
  /// Does what can be done without waiting. Whether anything moved.
  /// Throws: CommError if the ranks called different things.
  bool progress();
  /// Ends all that is under way without a result.
  void fail(const std::string& reason);

  /// Why there is nothing to wait for: a rank is gone, or too late. Empty
  /// otherwise. What a rank did before it went may still have to be read.
  std::string peer_failure() const;

 private:
  std::string describe_delay(const ShmOperation& operation) const;
  bool try_write(ShmOperation& operation);
  bool try_read(ShmOperation& operation);
  void check(const ShmOperation& operation, int64_t peer, uint64_t at) const;
  void update_history(const ShmCall& call);
  void finish(ShmOperation& operation);

  GroupMembers members_;
  ShmShape shape_;
  ShmSegment segment_;
  std::deque<std::shared_ptr<ShmOperation>> queue_;
  uint64_t next_sequence_ = 0;
  /// Rounds of all calls that have ended.
  uint64_t rounds_before_ = 0;
  /// Hash of these calls. Ranks of a broadcast that takes no data of theirs
  /// learn of a mismatch only by this.
  uint64_t history_ = 0;
  /// Why the group ended.
  std::string failure_;
};

/// Bytes of a slot: what fits the caches of two ranks at once.
inline constexpr size_t kShmSlotBytes = size_t{512} * 1024;

} // namespace weft::mesh
