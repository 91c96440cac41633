#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace weft::train {

/// The values that one point of a curve represents. Values that are not finite
/// are left out.
struct ValueRange {
  double sum = 0;
  int64_t count = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value);
  void add(const ValueRange& other);
  /// Returns the mean, or NaN if there are no values.
  double mean() const;
};

/// The metrics of one step, or of several adjacent steps that were merged.
struct MetricsPoint {
  /// The curves of a report. compute_ms is step_ms without data_ms and comm_ms.
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
  /// The time spent in steps and checkpoints up to this point.
  /// Unit: seconds.
  double time_s = 0;
  std::array<ValueRange, kKeys.size()> values;
};

struct EvalPoint {
  int64_t step = 0;
  int64_t tokens = 0;
  double time_s = 0;
  double loss = 0;
};

/// The content of metrics.jsonl in bounded memory. If there are more than
/// `max_points` points, adjacent points are merged, and their minimum and
/// maximum are kept.
struct MetricsSeries {
  static constexpr size_t kMaxPoints = 3000;

  /// Reads a file whose run may have been killed or may still be writing it.
  /// Unreadable lines are left out and counted.
  /// Throws: mesh::UsageError if it cannot be opened.
  static MetricsSeries read(
      const std::string& path,
      size_t max_points = kMaxPoints);

  std::vector<MetricsPoint> points;
  std::vector<EvalPoint> evals;
  int64_t steps_per_point = 1;
  /// The number of lines that were read, and the loss of the last one.
  int64_t lines = 0;
  double last_loss = std::numeric_limits<double>::quiet_NaN();
  /// The steps at which a new process seems to have resumed the run: a step
  /// that was there already, or one with a lower peak memory, which never falls
  /// within a process.
  std::vector<int64_t> restarts;

  /// Warnings about the file, as text.
  std::vector<std::string> notes;
};

} // namespace weft::train
