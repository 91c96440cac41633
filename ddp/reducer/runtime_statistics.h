#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ddp/reducer/logging_data.h"

namespace weft::ddp {

/// Keeps what a training loop measures of itself. Points in time are passed in.
/// Not thread-safe. The time of an overlap is that from the first launch to the
/// last gradient, as PyTorch's.
/// Source: torch/csrc/distributed/c10d/reducer.cpp,
/// should_collect_runtime_stats; logger.cpp, set_runtime_stats_and_log.
class RuntimeStatistics {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  /// The first 10 iterations are sampled, then every `every`th. Default: 100.
  /// Throws: c10::ValueError unless it is positive.
  void set_sample_rate(int64_t every);

  /// An iteration begins whose backward reduces. Until the next one, events
  /// count as its own. Returns whether the one that it ends was sampled: then
  /// write_to() has something new.
  bool on_forward_begin(Time now);
  /// Whether events of this iteration count; else they may be left out.
  bool is_sampled() const;
  int64_t iteration() const { return iteration_; }

  /// Forward is over: its outputs are known.
  void on_backward_begin(Time now);
  /// All gradients are there.
  void on_backward_compute_end(Time now);
  /// A bucket's reduction was launched; of several the first counts.
  void on_comm_begin(Time now);
  /// A bucket was reduced; of several the last counts.
  void on_comm_end(Time now);

  /// Of each backward that reduced: the parameters that got no gradient on this
  /// rank and their size, the order in which the others got theirs, and how
  /// many buckets were reduced.
  void on_unused(const std::vector<size_t>& unused, int64_t bytes);
  void on_ready_order(const std::vector<size_t>& order);
  void on_buckets_reduced(int64_t buckets);

  /// Ends the iteration under way early, e.g. to read its times. Returns
  /// whether it was sampled.
  bool finish_iteration();
  /// Forgets the iteration under way, which failed.
  void drop_iteration();

  /// Sets the fields that this class keeps.
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
  /// From one event to another: the last and the average of all.
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

  /// Of the last sampled iteration that ended.
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
