#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mesh/backends/shm/unix_socket.h"
#include "mesh/bootstrap/cancellable_store.h"
#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// The control words that one rank publishes to its group. Only this rank
/// writes them.
struct alignas(128) ShmRank {
  /// The number of rounds whose slot holds this rank's data.
  std::atomic<uint64_t> published;
  /// The number of rounds in which this rank has read everything it needs.
  std::atomic<uint64_t> consumed;
  /// Nonzero while the owner sleeps and its doorbell must be rung.
  std::atomic<uint32_t> asleep;
  /// Nonzero after the owner aborted or left the group.
  std::atomic<uint32_t> left;
};

/// The header of a slot. It must be identical on all ranks; otherwise they
/// called different collectives.
struct ShmRoundHeader {
  /// The index of the round's collective in the group, counted from 0.
  uint64_t sequence;
  uint32_t kind;
  uint32_t dtype;
  /// The reduction or the root.
  int64_t detail;
  /// The value that was passed to Backend::announce() for this collective.
  uint64_t identity;
  /// The number of rounds that this rank needs for the collective.
  uint64_t rounds;
  /// A hash of the calls that the rank made before.
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

/// An eventfd-based wake-up of one rank of this host, shared by all its groups.
class ShmDoorbell {
 public:
  ShmDoorbell();
  int descriptor() const { return descriptor_.get(); }
  /// Waits until the doorbell has been rung since the last call, or `at_most`
  /// has passed.
  void wait(std::chrono::milliseconds at_most) const;
  static void ring(int descriptor);

 private:
  base::UniqueFd descriptor_;
};

/// The memory that the ranks of a group share on one host: control words and
/// slots. It has no name in the file system: the first rank creates it and
/// passes it to the others over a socket, and the kernel frees it with its last
/// user. Ranks that are threads of one process share one mapping.
class ShmSegment {
 public:
  /// Collective: the group's members, all on one host; blocks.
  /// Throws: std::exception if a member does not arrive in time.
  ShmSegment(
      const GroupMembers& members,
      const GroupRendezvous& rendezvous,
      size_t slot_bytes,
      const ShmDoorbell& own_doorbell);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  ShmRank& rank(int64_t r) const;
  ShmRank& own() const { return rank(own_); }
  ShmRoundHeader& header(int64_t r, uint64_t round) const;
  /// An array next to the header: the bytes of the whole collective for each
  /// rank.
  uint64_t* bytes_for(int64_t r, uint64_t round) const;
  std::byte* slot(int64_t r, uint64_t round) const;

  /// Wakes all sleeping peers.
  void ring_others() const;

  /// Returns a rank whose process is gone or that has left, or -1 if there is
  /// none.
  int64_t lost_rank() const;
  /// Returns true if a rank has said that it leaves. Makes no system call.
  bool has_left_rank() const;
  /// Tells the peers that this rank has left.
  void leave() const;

  /// Returns true if this system and the limits of this process support
  /// everything that a segment needs.
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
      const GroupRendezvous& rendezvous,
      const ShmDoorbell& own_doorbell);
  void attach_segment(
      const GroupMembers& members,
      const GroupRendezvous& rendezvous,
      const ShmDoorbell& own_doorbell);
  void join();

  int64_t own_;
  int64_t size_;
  size_t slot_bytes_;
  Layout layout_;
  std::shared_ptr<Mapping> mapping_;
  std::byte* memory_ = nullptr;
  /// This rank's own descriptor of the memory. It holds a lock on byte `own_`
  /// until the process ends.
  base::UniqueFd lock_;
  std::vector<base::UniqueFd> doorbells_;
};

} // namespace weft::mesh
