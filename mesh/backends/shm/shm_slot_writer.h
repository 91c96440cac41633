#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::mesh {

// Note [Stores to a slot]
// ~~~~~~~~~~~~~~~~~~~~~~~
// A slot that is written again lies in the cache of the rank that has read it,
// and an ordinary store waits until that cache has given up the line. On an
// EPYC of Zen 4 this takes up to 9 ns a line between cores that share a
// last-level cache, and next to nothing where other data has replaced the line
// since. Between cores of two core complexes it takes 17 to 27 ns a line, which
// is 0.4 ms for 1 MB. A non-temporal store does not wait (1.5 to 4 ns a line),
// but it writes to memory, and the reader takes 2 to 4 ns more to get the line
// from there. Which is better depends on where the ranks run, which changes
// when the system moves a thread, and on what else uses the caches. So a rank
// measures its own copies. The bytes that arrive are the same.

/// Decides from their times how the next copy to a slot is stored: by ordinary
/// stores unless they take more than three times as long as non-temporal ones
/// and 12 ns longer for a line of 64 bytes.
class ShmStoreChoice {
 public:
  /// Returns true if the next copy should use non-temporal stores.
  bool next_is_streamed();
  /// Adds the time of a copy.
  void add(bool is_streamed, double ns_per_byte);

 private:
  /// The last times of one kind of store. A copy takes longer where it is the
  /// first to touch the memory or the system gives the core to another thread,
  /// but never less.
  class Times {
   public:
    void add(double time) { times_[count_++ % times_.size()] = time; }
    bool is_full() const { return count_ >= times_.size(); }
    double least() const;

   private:
    std::array<double, 3> times_{};
    uint64_t count_ = 0;
  };
  Times ordinary_;
  Times streamed_;
  bool streams_ = false;
  /// The other kind is tried once in so many copies.
  uint64_t period_ = 16;
  uint64_t copies_since_trial_ = 0;
};

/// Copies the data of one rank to its slots. Not thread-safe.
class ShmSlotWriter {
 public:
  /// `ranks` is the size of the group.
  explicit ShmSlotWriter(int64_t ranks);

  /// Writes `bytes` bytes that the other ranks read. They are visible to the
  /// reader of any flag that is stored afterwards.
  void copy_for_all(std::byte* slot, const std::byte* from, size_t bytes);
  /// Writes bytes that only `reader`, a rank of the group, reads.
  void copy_for(
      int64_t reader,
      std::byte* slot,
      const std::byte* from,
      size_t bytes);

 private:
  // For sizes of up to 8 KB, 16 KB and so on: small calls find their slots in
  // caches from which the data of large calls has replaced them.
  using Choices = std::array<ShmStoreChoice, 8>;
  static void
  copy(Choices& choices, std::byte* slot, const std::byte* from, size_t bytes);

  Choices for_all_;
  /// By reader: some may be nearer than others.
  std::vector<Choices> for_one_;
};

} // namespace weft::mesh
