#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "mesh/backends/shm/shm_call.h"
#include "mesh/backends/shm/shm_segment.h"
#include "mesh/backends/shm/shm_slot_writer.h"

namespace weft::mesh {

/// A running call and its progress.
struct ShmOperation {
  std::unique_ptr<ShmCall> call;
  uint64_t sequence = 0;
  std::chrono::steady_clock::time_point deadline;
  uint64_t rounds = 1;
  /// The number of rounds that this rank has written and read.
  uint64_t written = 0;
  uint64_t read = 0;
  /// The function to call on completion.
  std::function<void()> callback;
  /// The error message if the call failed. It is set before `done`.
  std::string failure;
  std::atomic<bool> done = false;
};

/// The calls of one group, oldest first. Not thread-safe.
class ShmGroup {
 public:
  /// Collective: the group's members, all on one host; blocks.
  ShmGroup(
      const GroupMembers& members,
      const GroupRendezvous& rendezvous,
      const ShmDoorbell& own_doorbell);

  ShmShape shape() const { return shape_; }
  const ShmSegment& segment() const { return segment_; }
  bool is_idle() const { return queue_.empty(); }

  std::shared_ptr<ShmOperation> push(std::unique_ptr<ShmCall> call);
  /// Advances the calls without blocking. Returns true if any progress was
  /// made.
  /// Throws: CommError if the ranks called different collectives.
  bool progress();
  /// Fails all running calls.
  void fail(const std::string& reason);

  /// Describes why a peer cannot contribute: it is gone or too late. Empty
  /// otherwise. Data that the peer published before may still have to be read.
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
  ShmSlotWriter writer_;
  std::deque<std::shared_ptr<ShmOperation>> queue_;
  uint64_t next_sequence_ = 0;
  /// The number of rounds of all finished calls together.
  uint64_t rounds_before_ = 0;
  /// A hash of these calls. It is the only way to detect a mismatch on a
  /// broadcast's receivers, which publish no data.
  uint64_t history_ = 0;
  /// The reason why the group failed.
  std::string failure_;
};

/// The size of a slot in bytes. A slot fits the caches of two ranks at the same
/// time.
inline constexpr size_t kShmSlotBytes = size_t{512} * 1024;

} // namespace weft::mesh
