#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace weft::mesh {

/// One collective, as one rank saw it.
struct LedgerEntry {
  uint64_t sequence = 0;
  /// The Communicator method's name, e.g. "all_reduce".
  std::string op;
  /// What was moved: a parameter's, module's or op's name; may be empty.
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Bytes of this rank's larger side (input or output).
  int64_t bytes = 0;
  /// Nanoseconds on the monotonic clock; end is 0 while under way.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

/// The record of a group's collectives: a ring of the newest entries and
/// counts since the start. Thread-safe.
class Ledger {
 public:
  explicit Ledger(size_t capacity = 4096);

  /// Opens an entry and returns its sequence number, from 0.
  uint64_t begin(LedgerEntry entry);
  void end(uint64_t sequence);
  /// Adds to the time in which the caller was blocked by this group.
  void add_blocked(std::chrono::nanoseconds blocked);

  std::vector<LedgerEntry> entries() const;
  /// Calls by op since construction or the last reset.
  std::map<std::string, int64_t> counts() const;
  int64_t total_bytes() const;
  /// Time in which callers waited for this group, in nanoseconds.
  int64_t blocked_ns() const;
  /// Forgets entries and counts; sequence numbers go on.
  void reset();

 private:
  mutable std::mutex mutex_;
  size_t capacity_;
  uint64_t next_sequence_ = 0;
  std::deque<LedgerEntry> entries_;
  std::map<std::string, int64_t> counts_;
  int64_t total_bytes_ = 0;
  int64_t blocked_ns_ = 0;
};

} // namespace weft::mesh
