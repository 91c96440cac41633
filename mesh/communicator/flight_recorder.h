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

/// One collective as seen by one rank.
struct FlightRecorderEntry {
  uint64_t sequence = 0;
  /// The Communicator method's name, e.g. "all_reduce".
  std::string op;
  /// The name of the data: a parameter, module or op. May be empty.
  std::string name;
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// The reduction (a ReduceOp), the root, or -1.
  int64_t argument = -1;
  /// Bytes of this rank's larger side (input or output).
  int64_t bytes = 0;
  /// The number of elements of every rank's part, if parts may differ. For
  /// all_to_all: the elements that this rank sends to each rank, followed by
  /// those that it receives. Only set while the collective runs.
  std::vector<int64_t> parts;
  /// The calling thread's index. See Note [One caller].
  int64_t caller = 0;
  /// A hash of what must be identical on all ranks. See identity_of().
  uint64_t identity = 0;
  /// Nanoseconds of the monotonic clock. The end is 0 while the collective
  /// runs.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// The time since which a thread waits for the collective. 0 if none does.
  int64_t wait_ns = 0;
};

/// Returns the time in nanoseconds on the flight recorders' clock.
int64_t flight_recorder_now_ns();

/// Records the collectives of a group: a ring buffer of the newest entries, and
/// totals since the start. Thread-safe.
class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity = 4096);

  /// Adds an entry and returns its sequence number, counted from 0.
  uint64_t begin(FlightRecorderEntry entry);
  void end(uint64_t sequence);
  /// Marks the start of a thread's wait for the entry, until end_wait().
  void begin_wait(uint64_t sequence);
  void end_wait(uint64_t sequence);
  /// Adds to the time for which callers were blocked by this group.
  void add_blocked(std::chrono::nanoseconds blocked);

  std::vector<FlightRecorderEntry> entries() const;
  /// Returns the oldest running entries and the newest entries, at most `most`
  /// of each, in order.
  std::vector<FlightRecorderEntry> newest(size_t most) const;
  /// The sequence number of the next entry.
  uint64_t next_sequence() const;
  /// The time since which the longest-waiting thread has waited. 0 if none
  /// waits.
  int64_t waiting_since_ns() const;
  /// The number of calls by op since construction or the last reset().
  std::map<std::string, int64_t> counts() const;
  int64_t total_bytes() const;
  /// The time in nanoseconds for which callers waited for this group.
  int64_t blocked_ns() const;
  /// Removes entries and totals. Sequence numbers continue.
  void reset();

 private:
  void copy_wait(FlightRecorderEntry& entry) const;

  mutable std::mutex mutex_;
  size_t capacity_;
  uint64_t next_sequence_ = 0;
  std::deque<FlightRecorderEntry> entries_;
  /// The sequence numbers that threads wait for, with the start of each wait.
  std::vector<std::pair<uint64_t, int64_t>> waits_;
  std::map<std::string, int64_t> counts_;
  int64_t total_bytes_ = 0;
  int64_t blocked_ns_ = 0;
};

} // namespace weft::mesh
