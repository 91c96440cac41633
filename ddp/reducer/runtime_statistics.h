#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ddp/reducer/logging_data.h"

namespace weft::ddp {

/// Collects timings of a training loop. It reads no clock: the caller passes
/// the current time. Not thread-safe. As in PyTorch, the overlap of computation
/// and communication is the time from the launch of the first bucket's
/// reduction to the last gradient.
/// Source: torch/csrc/distributed/c10d/reducer.cpp,
/// should_collect_runtime_stats; logger.cpp, set_runtime_stats_and_log.
class RuntimeStatistics {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  /// Sets the sampling: the first 10 iterations, then every `every`th. The
  /// default is 100.
  /// Throws: c10::ValueError unless it is positive.
  void set_sample_rate(int64_t every);

  /// Begins an iteration whose backward reduces, and ends the previous one.
  /// Returns true if that one was sampled, so that write_to() has new values.
  bool on_forward_begin(Time now);
  /// Returns true if events of this iteration are recorded. Otherwise they may
  /// be omitted.
  bool is_sampled() const;
  int64_t iteration() const { return iteration_; }

  /// Records that forward has ended.
  void on_backward_begin(Time now);
  /// Records that all gradients are ready.
  void on_backward_compute_end(Time now);
  /// Records the launch of a bucket's reduction. Only the first one counts.
  void on_comm_begin(Time now);
  /// Records the end of a bucket's reduction. Only the last one counts.
  void on_comm_end(Time now);

  /// Records, for each backward that reduced: the parameters without a gradient
  /// on this rank and their size, the order in which the other gradients were
  /// ready, and the number of reduced buckets.
  void on_unused(const std::vector<size_t>& unused, int64_t bytes);
  void on_ready_order(const std::vector<size_t>& order);
  void on_buckets_reduced(int64_t buckets);

  /// Ends the current iteration early, e.g. to read its times. Returns true if
  /// it was sampled.
  bool finish_iteration();
  /// Discards the current iteration after a failure.
  void drop_iteration();

  /// Sets the fields that this class provides.
  void write_to(DDPLoggingData& data) const;

 private:
  enum Event {
    kForwardBegin,
    kBackwardBegin,
    kBackwardComputeEnd,
    kCommBegin,
    kCommEnd,
    kEvents
  };
  /// The time between two events: the last one and the sum of all.
  struct Span {
    int64_t last = 0;
    int64_t sum = 0;
    int64_t count = 0;

    int64_t average() const { return count == 0 ? 0 : sum / count; }
  };
  using Events = std::array<std::optional<Time>, kEvents>;

  void add(Span& span, Event begin, Event end);

  int64_t every_ = 100;
  int64_t iteration_ = 0;
  bool is_open_ = false;
  Events events_{};

  /// The last completed sampled iteration.
  int64_t sampled_iteration_ = 0;
  Events sampled_{};
  Span forward_, backward_, comm_, overlap_;

  int64_t buckets_reduced_ = 0;
  std::vector<size_t> ready_order_;
  std::optional<std::vector<size_t>> unused_;
  int64_t unused_bytes_ = 0;
  int64_t backwards_ = 0;
  bool is_graph_the_same_ = true;
};

} // namespace weft::ddp
