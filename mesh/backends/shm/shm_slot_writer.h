#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::mesh {

// Note [Stores to a slot]
// ~~~~~~~~~~~~~~~~~~~~~~~
// A slot that is written again lies in the cache of the rank that has read it,
// and an ordinary store waits until that cache has given up the line. Between
// cores that share a last-level cache this takes up to 9 ns a line, and next to
// nothing where other data has replaced the line since. Between other cores
// (two core complexes of an EPYC, two sockets) it takes 25 ns a line, which is
// 0.4 ms for 1 MB. A non-temporal store does not wait, about 1.5 ns a line, but
// it writes to memory, and the reader takes another 2 ns a line to get it from
// there. Which is better depends on where the ranks run, which changes when the
// system moves a thread, and on what else uses the caches. So a rank measures
// its own copies. The bytes that arrive are the same.

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
  /// The last times of one kind of store. A copy takes longer where the system
  /// gives the core to another thread, but never less.
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
  uint64_t copies_ = 0;
};

/// Copies the data of one rank to its slots. Not thread-safe.
class ShmSlotWriter {
 public:
  /// Writes `bytes` bytes. They are visible to the reader of any flag that is
  /// stored afterwards.
  void copy(std::byte* slot, const std::byte* from, size_t bytes);

 private:
  /// For sizes of up to 2^i bytes: small calls find their slots in caches from
  /// which the data of large calls has replaced them.
  std::array<ShmStoreChoice, 24> choices_;
};

} // namespace weft::mesh
