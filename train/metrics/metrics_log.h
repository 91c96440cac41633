#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/metrics/buffered_append_file.h"

namespace weft::train {

/// The metrics of one training step.
struct StepMetrics {
  /// The number of steps done, including this one.
  int64_t step = 0;
  /// The mean over all valid tokens of the global batch.
  double loss = 0;
  /// The norm over all parameters, before clipping.
  double grad_norm = 0;
  double lr = 0;
  /// The number of tokens trained on since the first step, over all replicas.
  int64_t tokens = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  double data_ms = 0;
  double comm_ms = 0;
  double checkpoint_ms = 0;
  double peak_rss_mb = 0;
  /// The peak memory of tensors on a CUDA device.
  /// Unit: MiB.
  std::optional<double> peak_device_mb = std::nullopt;
  std::optional<double> eval_loss = std::nullopt;
  /// The validation loss of the EMA weights.
  std::optional<double> ema_eval_loss = std::nullopt;
  /// True if the loss or the gradients were not finite, so that nothing was
  /// updated.
  bool skipped = false;
  /// True if an evaluation was due but the run was asked to stop.
  bool eval_interrupted = false;
  /// In an elastic run: the number of replica groups whose gradients count, and
  /// that of the epoch (elastic::Quorum::epoch). 0 in others.
  int64_t groups = 0;
  int64_t epoch = 0;
};

/// Returns the peak resident memory of this process.
/// Unit: MiB.
double peak_rss_mb();

/// Returns the line of metrics.jsonl for one step, without the line feed.
std::string metrics_line(const StepMetrics& metrics);

/// Returns true if the evaluation of the line's step was interrupted and has to
/// be repeated.
bool lacks_evaluation(const std::string& line);
/// Returns the line with the results of its evaluation.
std::string with_evaluation(
    const std::string& line,
    double eval_loss,
    std::optional<double> ema_eval_loss);

/// The file metrics.jsonl, with one line of JSON per step and all digits of
/// each number. A line has been passed to the kernel when write() returns, or
/// is buffered until there is space. Numbers that are not finite become null.
class MetricsLog {
 public:
  /// Opens `path`, creates its folders, and truncates the file after the last
  /// line of a step up to `last_step`, because a killed run may have written
  /// more. Earlier lines stay, including unreadable ones. 0 empties the file.
  /// Throws: mesh::UsageError if it cannot be written.
  explicit MetricsLog(const std::string& path, int64_t last_step = 0);

  /// The step of the last line that was kept. 0 means that there is none.
  int64_t last_step() const { return last_step_; }

  /// A message for the user about unreadable lines. Empty if there are none.
  const std::string& notice() const { return notice_; }

  /// These functions return messages for the user like BufferedAppendFile.
  std::string write(const StepMetrics& metrics);
  std::string write_line(const std::string& line);
  std::string finish() { return file_->finish(); }

  /// Creates the file and its folders if they are missing, and does not change
  /// the content.
  /// Throws: mesh::UsageError if `path` cannot be written.
  static void check_writable(const std::string& path);

 private:
  int64_t last_step_ = 0;
  std::string notice_;
  std::optional<BufferedAppendFile> file_;
};

} // namespace weft::train
