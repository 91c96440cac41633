#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/recipe.h"
#include "data/batch_loader.h"
#include "dtensor/nn/clip_grad.h"
#include "mesh/world.h"
#include "train/health/non_finite.h"
#include "train/health/phase_clock.h"
#include "train/metrics/metrics_log.h"
#include "train/setup/train_job.h"
#include "train/store/train_state.h"
#include "train/trace/step_tracer.h"

namespace weft::recipes {

class IntegrityChecker;

/// Trains what a recipe describes. Only composes: data, model, ddp, optimizer.
class Trainer {
 public:
  /// Builds everything up to the first step.
  /// Collective: all ranks of `world`; blocks.
  /// Throws: mesh::UsageError; mesh::DisagreementError if ranks have different
  /// recipes or data.
  Trainer(Recipe recipe, const mesh::World& world);

  /// One optimizer step over a whole global batch; `step` counts from 0. Its
  /// samples follow those of the step before. Where the loss or a gradient is
  /// not finite, the step may be skipped: see train.on_non_finite.
  /// Collective: all ranks; blocks.
  /// Throws: NonFiniteError, on all ranks, if it is not to be skipped.
  StepMetrics train_step(int64_t step);
  /// Before step `step`, counted from 1, is saved: an update can overflow where
  /// loss and gradients did not.
  /// Collective: all ranks; blocks.
  /// Throws: NonFiniteError, on all ranks, if a weight is not finite on one.
  void check_weights(int64_t step);
  /// Why the last step was skipped, for the user; empty: it was not.
  const std::string& skip_note() const { return skip_note_; }

  /// The mean loss of the held-out batches; none if a rank was asked to stop
  /// before its end.
  /// Collective: all ranks; blocks.
  std::optional<double> evaluate();
  /// The same with the averaged weights; ema.decay is not 0.
  std::optional<double> evaluate_average();

  /// Counts on from an earlier process's last step; before the first step.
  void start_from(const TrainState& state);
  /// What to remember after `step` steps in all.
  TrainState state_after(int64_t step) const;
  /// From now on phases of a step are spans of `tracer`, which outlives this;
  /// null: of none.
  void set_tracer(const StepTracer* tracer) { tracer_ = tracer; }
  /// The same: `clock` counts the time of phases, and `integrity_checker` hears
  /// of every update.
  void set_phase_clock(PhaseClock* clock) { phase_clock_ = clock; }
  void set_integrity_checker(IntegrityChecker* integrity_checker) {
    integrity_checker_ = integrity_checker;
  }
  /// Ranks tell each other, in train_step(), evaluate() and
  /// all_reduce_stop_request(), whether this has said yes on one of them.
  void set_stop_request(std::function<bool()> is_asked) {
    is_stop_requested_ = std::move(is_asked);
  }
  /// Collective: all ranks; blocks. Returns should_stop().
  bool all_reduce_stop_request();
  /// Whether it has, as of the last of those: the same on all ranks.
  bool should_stop() const { return should_stop_; }

  TrainJob& job() { return job_; }
  const Recipe& recipe() const { return recipe_; }
  /// What is trained, on what, in one line.
  std::string describe() const;

 private:
  int64_t global_tokens() const;
  // See Note [Messages of a step].
  double all_reduce_scalar(double value, bool is_finite = true);
  double all_reduce_scalar(
      double value,
      bool is_finite,
      const dtensor::GradNorm& norm);
  at::Tensor forward_backward(const Batch& batch, int64_t step);
  std::vector<MicroLoss> accumulate_gradients(int64_t step, double& data_ms);
  void update(double lr, double gradient_norm);
  void skip_or_stop(int64_t step, const std::vector<MicroLoss>& losses);
  double comm_ms() const;
  struct PhaseSpan {
    TraceSpan trace;
    PhaseClock::Span time;
  };
  /// `phase` is a literal.
  PhaseSpan span(const char* phase) const;

  Recipe recipe_;
  mesh::World world_;
  BatchLoader loader_;
  std::string data_fingerprint_;
  TrainJob job_;
  const StepTracer* tracer_ = nullptr;
  /// The one under way, from 1; 0 before the first.
  int64_t step_ = 0;
  PhaseClock* phase_clock_ = nullptr;
  IntegrityChecker* integrity_checker_ = nullptr;
  std::function<bool()> is_stop_requested_;
  bool should_stop_ = false;
  bool is_finite_ = true;
  double gradient_norm_ = 0;
  bool keeps_local_norms_ = false;
  NonFinitePolicy non_finite_;
  std::string skip_note_;
  /// What was done before this process began.
  TrainState start_;
};

} // namespace weft::recipes
