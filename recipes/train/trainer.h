#pragma once

#include <memory>
#include <string>

#include "mesh/world.h"
#include "recipes/config/recipe.h"
#include "recipes/data/batch_loader.h"
#include "recipes/progress/metrics_log.h"
#include "recipes/progress/progress.h"
#include "recipes/train/llama_job.h"

namespace weft::recipes {

/// A loss or gradient is not a finite number.
class NonFiniteError : public c10::Error {
  using c10::Error::Error;
};

/// Trains what a recipe describes. Only composes: data, model, ddp, optimizer.
class Trainer {
 public:
  /// Builds everything up to the first step.
  /// Collective: all ranks of `world`; blocks.
  /// Throws: mesh::UsageError; mesh::DisagreementError if ranks have different
  /// recipes or data.
  Trainer(Recipe recipe, const mesh::World& world);

  /// Runs all steps; rank 0 writes outputs/<name>/ and shows progress.
  /// Collective: all ranks; blocks.
  /// Throws: NonFiniteError, the same on all ranks; mesh::CommError.
  void run();

  /// One optimizer step over a whole global batch; `step` counts from 0.
  /// Collective: all ranks; blocks.
  StepMetrics train_step(int64_t step);

  /// The mean loss of the held-out batches.
  /// Collective: all ranks; blocks.
  double evaluate();

  LlamaJob& job() { return job_; }

  /// Where run() writes a line a step.
  static std::string metrics_path(const Recipe& recipe);

 private:
  int64_t global_tokens() const;
  double sum_over_replicas(double value);
  double forward_backward(const Batch& batch);
  double accumulate_gradients(int64_t step, double& data_ms);
  double comm_ms() const;
  void open_outputs();

  Recipe recipe_;
  mesh::World world_;
  BatchLoader loader_;
  LlamaJob job_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<Progress> progress_;
  int64_t trained_tokens_ = 0;
};

} // namespace weft::recipes
