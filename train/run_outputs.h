#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/recipe.h"
#include "train/metrics/metrics_log.h"
#include "train/metrics/progress.h"
#include "train/metrics/tensorboard_log.h"
#include "train/report/report.h"
#include "train/store/run_store.h"

namespace weft::recipes {

/// What a run shows and leaves behind beside its checkpoints: the lines on
/// stdout, metrics.jsonl, recipe.yaml, report.html and event files. Rank 0 has
/// one.
class RunOutputs {
 public:
  explicit RunOutputs(const Recipe& recipe);

  /// A line for the user.
  void log_line(const std::string& text);

  /// Opens the files, cut to what was done before.
  /// Throws: mesh::UsageError if one cannot be written.
  void begin(
      const std::optional<RunStore::Resumed>& resumed,
      const torch::nn::Module& model,
      const mesh::DeviceMesh& mesh);

  /// Writes the line of the step that was resumed from anew.
  void replace_line(int64_t step, const std::string& line);

  /// After a step and all that belongs to it.
  void step_done(const StepMetrics& metrics);

  /// Brings the report up to date, for the last time.
  void end();

 private:
  void refresh_report(bool is_last);

  const Recipe& recipe_;
  Progress progress_;
  LiveReport report_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLog> tensorboard_;
};

} // namespace weft::recipes
