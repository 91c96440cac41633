#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace weft::recipes {

/// The values that one point of a curve stands for; those that are not finite
/// are left out.
struct ValueRange {
  double sum = 0;
  int64_t count = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value);
  void add(const ValueRange& other);
  /// Not a number if there are no values.
  double mean() const;
};

/// Of one step, or of neighbouring ones that were put together.
struct MetricsPoint {
  /// The curves that a report draws; compute_ms is what the other parts leave
  /// of a step.
  static constexpr std::array<std::string_view, 11> kKeys = {
      "loss",
      "grad_norm",
      "lr",
      "tokens_per_s",
      "step_ms",
      "data_ms",
      "comm_ms",
      "checkpoint_ms",
      "peak_rss_mb",
      "peak_device_mb",
      "compute_ms"};

  const ValueRange& operator[](std::string_view key) const;

  int64_t first_step = 0;
  int64_t last_step = 0;
  int64_t tokens = 0;
  /// Time spent in steps and checkpoints up to here. Unit: seconds.
  double time_s = 0;
  std::array<ValueRange, kKeys.size()> values;
};

struct EvalPoint {
  int64_t step = 0;
  int64_t tokens = 0;
  double time_s = 0;
  double loss = 0;
};

/// What metrics.jsonl says, in bounded memory however long the run was: when
/// there are more than `max_points` points, neighbours are put together, whose
/// least and greatest values stay known.
struct MetricsSeries {
  static constexpr size_t kMaxPoints = 3000;

  /// Reads a file that may have been written by a run that was killed, or is
  /// being written: what cannot be read is left out and counted.
  /// Throws: mesh::UsageError if it cannot be opened.
  static MetricsSeries read(
      const std::string& path,
      size_t max_points = kMaxPoints);

  std::vector<MetricsPoint> points;
  std::vector<EvalPoint> evals;
  int64_t steps_per_point = 1;
  /// Lines that count, and the last of them.
  int64_t lines = 0;
  double last_loss = std::numeric_limits<double>::quiet_NaN();
  /// Steps at which a new process seems to go on: one that was there already,
  /// or one at which the peak of memory, which only grows, fell.
  std::vector<int64_t> restarts;

  /// In words, what is odd about the file.
  std::vector<std::string> notes;
};

} // namespace weft::recipes
