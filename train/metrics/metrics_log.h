#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/metrics/buffered_append_file.h"

namespace weft::recipes {

/// What is kept of one training step.
struct StepMetrics {
  /// Steps done, this one included.
  int64_t step = 0;
  /// Mean over all valid tokens of the global batch.
  double loss = 0;
  /// Over all parameters, before clipping.
  double grad_norm = 0;
  double lr = 0;
  /// Trained on since the first step, over all replicas.
  int64_t tokens = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  double data_ms = 0;
  double comm_ms = 0;
  double checkpoint_ms = 0;
  double peak_rss_mb = 0;
  /// On a CUDA device: the most memory its tensors have taken. Units: MiB.
  std::optional<double> peak_device_mb = std::nullopt;
  std::optional<double> eval_loss = std::nullopt;
  /// The same of the average of the weights.
  std::optional<double> ema_eval_loss = std::nullopt;
  /// Loss or gradients were not finite: nothing was updated.
  bool skipped = false;
  /// It was due, but the run was asked to stop.
  bool eval_interrupted = false;
};

/// The most memory this process has had resident. Units: MiB.
double peak_rss_mb();

/// The line of metrics.jsonl for one step, without its end.
std::string metrics_line(const StepMetrics& metrics);

/// Whether the step of a line has an evaluation to be caught up with.
bool lacks_evaluation(const std::string& line);
/// The line with it.
std::string with_evaluation(
    const std::string& line,
    double eval_loss,
    std::optional<double> ema_eval_loss);

/// metrics.jsonl: one line of JSON a step, with every digit, with the kernel
/// before write() returns, or waiting for room. A number that is not finite
/// becomes null.
class MetricsLog {
 public:
  /// Opens `path`, making its folders, and cuts it after the last line of a
  /// step up to `last_step`: a killed run may have written more. Lines before
  /// it stay, also those that cannot be read. 0 starts the file over.
  /// Throws: mesh::UsageError if it cannot be written.
  explicit MetricsLog(const std::string& path, int64_t last_step = 0);

  /// The step of the last line that is left; 0: there is none.
  int64_t last_step() const { return last_step_; }

  /// What the user should know of lines that cannot be read; mostly nothing.
  const std::string& notice() const { return notice_; }

  /// Both return what the user should know, as BufferedAppendFile; mostly
  /// nothing.
  std::string write(const StepMetrics& metrics);
  std::string write_line(const std::string& line);
  std::string finish() { return file_->finish(); }

  /// Throws: mesh::UsageError if `path` cannot be written. Changes nothing in
  /// it.
  static void check_writable(const std::string& path);

 private:
  int64_t last_step_ = 0;
  std::string notice_;
  std::optional<BufferedAppendFile> file_;
};

} // namespace weft::recipes
