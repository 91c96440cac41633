#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace weft::recipes {

/// One span of a trace.
struct TraceEvent {
  std::string name;
  /// "step", "phase", "module", "op", "backward" or "collective".
  const char* category = "";
  /// On the monotonic clock, as a ledger's.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// The thread that it ran on: see TraceRecorder::track().
  int64_t track = 0;
  /// More about it, as a JSON object; may be empty.
  std::string details;
};

/// Nanoseconds on the monotonic clock.
int64_t monotonic_ns();

/// Collects the spans of one rank while it is on. Thread-safe.
class TraceRecorder {
 public:
  /// Beyond `capacity` spans the rest is counted and left out.
  explicit TraceRecorder(size_t capacity = size_t{1} << 21);

  void set_on(bool is_on) { is_on_ = is_on; }
  bool is_on() const { return is_on_; }

  /// A number for the calling thread: 0 for the first that asked, 1, 2, ...
  int64_t track();
  void add(TraceEvent event);
  /// The spans so far; those to come begin a new list.
  std::vector<TraceEvent> take();
  int64_t dropped() const;

 private:
  std::atomic<bool> is_on_ = false;
  mutable std::mutex mutex_;
  size_t capacity_;
  std::vector<TraceEvent> events_;
  int64_t dropped_ = 0;
  std::map<std::thread::id, int64_t> tracks_;
};

/// Records its own lifetime. Costs nothing where there is no recorder.
class TraceSpan {
 public:
  /// Lifetime: `recorder` outlives this; null: nothing is recorded.
  TraceSpan(
      TraceRecorder* recorder,
      std::string_view name,
      const char* category = "phase");
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceRecorder* recorder_;
  TraceEvent event_;
};

} // namespace weft::recipes
