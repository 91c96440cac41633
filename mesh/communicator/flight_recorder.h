#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

namespace weft::mesh {

/// One collective, as one rank saw it.
struct FlightRecorderEntry {
  uint64_t sequence = 0;
  /// The Communicator method's name, e.g. "all_reduce".
  std::string op;
  /// What was moved: a parameter's, module's or op's name; may be empty.
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// The reduction (a ReduceOp), the root, or -1.
  int64_t argument = -1;
  /// Bytes of this rank's larger side (input or output).
  int64_t bytes = 0;
  /// Elements of every rank's part, where they may differ; of all_to_all what
  /// this rank sends to, then receives from, each. Only while under way.
  std::vector<int64_t> parts;
  /// Which of the threads that call on the group: see Note [One caller].
  int64_t caller = 0;
  /// A hash of what is the same on all ranks: see identity_of().
  uint64_t identity = 0;
  /// Nanoseconds on the monotonic clock; end is 0 while under way.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// Since when a thread has been waiting for it; 0 while none does.
  int64_t wait_ns = 0;
};

/// Nanoseconds on the ledgers' clock.
int64_t flight_recorder_now_ns();

/// The record of a group's collectives: a ring of the newest entries and
/// counts since the start. Thread-safe.
class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity = 4096);

  /// Opens an entry and returns its sequence number, from 0.
  uint64_t begin(FlightRecorderEntry entry);
  void end(uint64_t sequence);
  /// A thread waits for the entry from now on, until end_wait().
  void begin_wait(uint64_t sequence);
  void end_wait(uint64_t sequence);
  /// Adds to the time in which the caller was blocked by this group.
  void add_blocked(std::chrono::nanoseconds blocked);

  std::vector<FlightRecorderEntry> entries() const;
  /// The oldest entries that are under way and the newest of all, at most
  /// `most` of each, in order.
  std::vector<FlightRecorderEntry> newest(size_t most) const;
  /// What the next entry will have.
  uint64_t next_sequence() const;
  /// Since when the thread has waited that has waited longest; 0: none waits.
  int64_t waiting_since_ns() const;
  /// Calls by op since construction or the last reset.
  std::map<std::string, int64_t> counts() const;
  int64_t total_bytes() const;
  /// Time in which callers waited for this group, in nanoseconds.
  int64_t blocked_ns() const;
  /// Forgets entries and counts; sequence numbers go on.
  void reset();

 private:
  void copy_wait(FlightRecorderEntry& entry) const;

  mutable std::mutex mutex_;
  size_t capacity_;
  uint64_t next_sequence_ = 0;
  std::deque<FlightRecorderEntry> entries_;
  /// Sequence numbers that a thread waits for, and since when.
  std::vector<std::pair<uint64_t, int64_t>> waits_;
  std::map<std::string, int64_t> counts_;
  int64_t total_bytes_ = 0;
  int64_t blocked_ns_ = 0;
};

} // namespace weft::mesh
