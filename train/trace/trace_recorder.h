#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace weft::train {

/// One span of a trace.
struct TraceEvent {
  std::string name;
  /// The category: "step", "phase", "module", "op", "backward" or "collective".
  const char* category = "";
  /// Nanoseconds on the monotonic clock, as in a flight recorder.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  /// The thread on which the span ran. See TraceRecorder::track().
  int64_t track = 0;
  /// Further details as a JSON object. May be empty.
  std::string details;
};

/// Returns nanoseconds on the monotonic clock.
int64_t monotonic_ns();

/// Collects the spans of one rank while it is on. Thread-safe.
class TraceRecorder {
 public:
  /// Spans beyond `capacity` are dropped and counted.
  explicit TraceRecorder(size_t capacity = size_t{1} << 21);

  void set_on(bool is_on) { is_on_ = is_on; }
  bool is_on() const { return is_on_; }

  /// Returns the number of the calling thread: 0 for the first thread that
  /// calls this, then 1, 2, ...
  int64_t track();
  void add(TraceEvent event);
  /// Returns the spans so far and removes them.
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

/// Records its own lifetime as a span. Costs nothing without a recorder.
class TraceSpan {
 public:
  /// Starts the span. If `recorder` is null, nothing is recorded.
  /// Lifetime: `recorder` must outlive this.
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

} // namespace weft::train
