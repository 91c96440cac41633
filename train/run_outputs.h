#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/recipe.h"
#include "train/metrics/metrics_log.h"
#include "train/metrics/progress.h"
#include "train/metrics/quorum_log.h"
#include "train/metrics/tensorboard_log.h"
#include "train/report/report.h"
#include "train/store/run_store.h"

namespace weft::train {

/// The outputs of a run other than its checkpoints: the lines on stdout,
/// metrics.jsonl, recipe.yaml, report.html and event files. Exists on rank 0
/// only.
class RunOutputs {
 public:
  /// Writes nothing yet. `recipe` must outlive this object.
  explicit RunOutputs(const config::Recipe& recipe);

  /// The log of the run, on standard output between the lines of the steps.
  const base::Logger& log() const { return log_; }

  /// Opens the files, truncates metrics.jsonl after the resumed step and writes
  /// `resolved`, the recipe with all choices of this run, to recipe.yaml.
  /// Throws: mesh::UsageError if a file cannot be written.
  void begin(
      const config::Recipe& resolved,
      const std::optional<RunStore::Resumed>& resumed,
      const torch::nn::Module& model,
      const mesh::DeviceMesh& mesh);

  /// Opens the files that another replica group has written up to `step`, and
  /// writes those of `lines`, by step, and of `quorums` that it has not.
  /// Throws: mesh::UsageError if a file cannot be written.
  void take_over(
      int64_t step,
      const std::map<int64_t, std::string>& lines,
      const std::vector<QuorumEntry>& quorums);
  /// Closes the files, which another replica group writes from now on.
  void give_up();

  /// Replaces the line of the resumed step.
  void replace_line(int64_t step, const std::string& line);

  /// To be called in an elastic run when other groups train than before.
  void quorum_changed(const QuorumEntry& entry);
  /// To be called after each step, including its evaluation and checkpoint.
  void step_done(const StepMetrics& metrics);

  /// Writes the report for the last time.
  void end();

 private:
  void refresh_report(bool is_last);

  const config::Recipe& recipe_;
  Progress progress_;
  base::Logger log_;
  LiveReport report_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLog> tensorboard_;
  std::optional<QuorumLog> quorums_;
};

} // namespace weft::train
