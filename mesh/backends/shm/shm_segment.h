#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "mesh/backends/shm/unix_socket.h"
#include "mesh/communicator/backend.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// What one rank tells its group, in shared memory. Its owner alone writes it.
struct alignas(128) ShmRank {
  /// Rounds whose slot holds this rank's data.
  std::atomic<uint64_t> published;
  /// Rounds in which this rank has read everything it needs.
  std::atomic<uint64_t> consumed;
  /// Whether the owner waits for its bell, and so has to be rung.
  std::atomic<uint32_t> asleep;
  /// Whether the owner aborted the group or let go of it.
  std::atomic<uint32_t> left;
};

/// What stands before the data of a slot: all ranks have the same, or they
/// called different things.
struct ShmRoundHeader {
  /// The collective of the group that the round belongs to, counted from 0.
  uint64_t sequence;
  uint32_t kind;
  uint32_t dtype;
  /// The reduction or the root.
  int64_t detail;
  /// Backend::announce().
  uint64_t identity;
  /// Rounds that this rank needs for the collective.
  uint64_t rounds;
  /// What the rank called before, hashed.
  uint64_t history;
};

// Note [Rounds]
// ~~~~~~~~~~~~~
// Every collective is some rounds. In round r each rank writes up to a slot of
// data to its slot r % kShmSlots and publishes it, reads of the others' slots
// of that round what it needs, and says that it has. It may write to a slot
// again when all the others have read what was there before. Nothing else is
// shared, so a rank that dies leaves nothing locked.

inline constexpr uint64_t kShmSlots = 2;

/// What wakes a rank of this host, whatever group it waits for.
class ShmDoorbell {
 public:
  ShmDoorbell();
  int descriptor() const { return descriptor_.get(); }
  /// Returns when rung since the last call, or when the time is over.
  void wait(std::chrono::milliseconds at_most) const;
  static void ring(int descriptor);

 private:
  Descriptor descriptor_;
};

/// Memory that the ranks of a group on one host share: control words and slots.
/// It has no name in the file system: the first rank makes it, hands it to the
/// others over a socket, and it is gone with the last of them. Ranks that are
/// threads of one process share one mapping.
class ShmSegment {
 public:
  /// Collective: the group's members, all on one host; blocks.
  /// Throws: std::exception if the members do not meet in time.
  ShmSegment(
      const GroupMembers& members,
      const c10::intrusive_ptr<c10d::Store>& store,
      size_t slot_bytes,
      const ShmDoorbell& own_doorbell);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  ShmRank& rank(int64_t r) const;
  ShmRank& own() const { return rank(own_); }
  ShmRoundHeader& header(int64_t r, uint64_t round) const;
  /// Beside the header: bytes of the whole collective for each rank.
  uint64_t* bytes_for(int64_t r, uint64_t round) const;
  std::byte* slot(int64_t r, uint64_t round) const;

  /// Wakes all others that sleep.
  void ring_others() const;

  /// A rank whose process is gone or that has left; -1 if all are there.
  int64_t lost_rank() const;
  /// Tells the others that this rank takes no part any more.
  void leave() const;

  /// Whether this system, with its limits on this process, can do all that a
  /// segment needs.
  static bool is_supported() noexcept;

  class Mapping;

 private:
  struct Layout {
    size_t rank_bytes;
    size_t header_bytes;
    size_t slot_bytes;
    size_t total;
  };
  void create_segment(
      const GroupMembers& members,
      c10d::Store& store,
      const ShmDoorbell& own_doorbell);
  void attach_segment(
      const GroupMembers& members,
      c10d::Store& store,
      const ShmDoorbell& own_doorbell);
  void join();

  int64_t own_;
  int64_t size_;
  size_t slot_bytes_;
  Layout layout_;
  std::shared_ptr<Mapping> mapping_;
  std::byte* memory_ = nullptr;
  /// This rank's own opening of the memory: it holds the lock on byte `own_`
  /// for as long as the process lives.
  Descriptor lock_;
  std::vector<Descriptor> doorbells_;
};

} // namespace weft::mesh
