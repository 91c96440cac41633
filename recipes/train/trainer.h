#pragma once

#include <memory>
#include <string>

#include "mesh/world.h"
#include "recipes/config/recipe.h"
#include "recipes/data/batch_loader.h"
#include "recipes/progress/metrics_log.h"
#include "recipes/progress/progress.h"
#include "recipes/train/llama_job.h"
#include "recipes/train/run_store.h"

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

  /// Goes on from the run's newest checkpoint, or with `fresh` from the start,
  /// to the last step; rank 0 writes outputs/<name>/ and shows progress.
  /// Collective: all ranks; blocks.
  /// Throws: NonFiniteError, the same on all ranks; mesh::CommError;
  /// mesh::UsageError if the folder cannot be used;
  /// checkpoint::CheckpointError if there are checkpoints and none is sound, or
  /// the last one cannot be saved.
  void run(bool fresh = false);

  /// One optimizer step over a whole global batch; `step` counts from 0. Its
  /// samples follow those of the step before.
  /// Collective: all ranks; blocks.
  StepMetrics train_step(int64_t step);

  /// The mean loss of the held-out batches.
  /// Collective: all ranks; blocks.
  double evaluate();

  LlamaJob& job() { return job_; }

 private:
  int64_t global_tokens() const;
  double sum_over_replicas(double value);
  at::Tensor forward_backward(const Batch& batch);
  double accumulate_gradients(int64_t step, double& data_ms);
  double comm_ms() const;
  void open_outputs();
  void say(const std::string& text) const;
  void resume(RunStore& store);
  bool save(RunStore& store, StepMetrics& metrics);
  void save_last(RunStore& store, StepMetrics& metrics);
  TrainState state_after(int64_t step) const;
  void train_to_the_end(RunStore& store);

  Recipe recipe_;
  mesh::World world_;
  BatchLoader loader_;
  LlamaJob job_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<Progress> progress_;
  /// What was done before this process began.
  TrainState start_;
};

} // namespace weft::recipes
