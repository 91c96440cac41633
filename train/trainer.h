#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/recipe.h"
#include "data/batch_loader.h"
#include "dtensor/nn/clip_grad.h"
#include "elastic/manager.h"
#include "mesh/world.h"
#include "train/health/non_finite.h"
#include "train/health/phase_clock.h"
#include "train/metrics/metrics_log.h"
#include "train/setup/train_job.h"
#include "train/store/train_state.h"
#include "train/trace/step_tracer.h"

namespace weft::train {

/// Returns what rank 0 passes, on all ranks.
/// Collective: the ranks of `world`; blocks.
bool says_rank_0(const mesh::World& world, bool holds, std::string_view what);

class IntegrityChecker;

/// A recipe whose `products` is resolved, and its data, opened for this rank.
struct TrainerInputs {
  config::Recipe recipe;
  data::BatchLoader data;
};

/// Selects the matmul library, opens the data of `recipe` for this rank unless
/// `data` has it, and compares recipe and data between ranks.
/// Collective: all ranks of `world`; blocks.
/// Throws: mesh::UsageError if the recipe or the data cannot be used;
/// mesh::DisagreementError if ranks have different recipes or data.
TrainerInputs open_inputs(
    config::Recipe recipe,
    const mesh::World& world,
    std::optional<data::BatchLoader> data = std::nullopt);

/// Trains the model of a recipe by combining its data, model, data-parallel
/// wrapper and optimizer.
class Trainer {
 public:
  /// Builds the mesh, model and optimizer for the first step.
  /// Collective: all ranks of `world`; blocks.
  /// Throws: mesh::UsageError if the recipe cannot be used.
  Trainer(TrainerInputs inputs, const mesh::World& world);
  /// Opens the data first; see open_inputs().
  Trainer(config::Recipe recipe, const mesh::World& world)
      : Trainer(open_inputs(std::move(recipe), world), world) {}
  ~Trainer();

  /// Runs one optimizer step over a full global batch. `step` counts from 0; in
  /// an elastic run the groups know it, and the result has it. The samples
  /// follow those of the step before. If the loss or a gradient is
  /// not finite, the step may be skipped; see train.on_non_finite.
  /// Collective: all ranks; blocks.
  /// Throws: NonFiniteError on all ranks if the step is not finite and not
  /// skipped.
  StepMetrics train_step(int64_t step);
  /// Checks the weights before the checkpoint of step `step` (counted from 1)
  /// is saved, because an update can overflow even if the loss and the
  /// gradients are finite. Collective: all ranks; blocks. Throws:
  /// NonFiniteError on all ranks if a weight is not finite on one of them.
  void check_weights(int64_t step);
  /// The reason why the last step was skipped, for the user. Empty if it was
  /// not skipped.
  const std::string& skip_note() const { return skip_note_; }

  /// Joins the other replica groups of an elastic run, after `step` steps. To
  /// be called before the first step. If too few groups are left, `save` is
  /// called on all ranks of one of them, with the number of steps that are
  /// done, and train_step() throws a mesh::CommError.
  /// Throws: mesh::UsageError without weftrun --replica-size.
  void join_groups(int64_t step, const std::function<void(int64_t)>& save);
  /// Returns true if this group wrote the outputs of an elastic run in the last
  /// step: the first group of the epoch. Always true otherwise.
  bool leads() const { return leads_ && !has_left(); }
  /// Returns true if the last train_step() did nothing, because the other
  /// groups have done all steps.
  bool is_over() const { return begun_.has_value(); }
  /// Returns true if this group has left the others after the last step,
  /// because it alone was asked to stop.
  bool has_left() const;
  /// Returns the groups of the last step if they are others than before: see
  /// elastic::Manager.
  std::optional<elastic::Quorum> take_quorum();
  /// Runs `act`, which may save, as a step without gradients after the last
  /// one, and again if a group is lost meanwhile.
  /// Collective: all ranks of all groups.
  void run_together(const std::function<void()>& act);

  /// Returns the validation loss, the mean over the validation batches. Empty
  /// if a rank was asked to stop before the end.
  /// Collective: all ranks; blocks.
  std::optional<double> evaluate();
  /// Like evaluate(), with the EMA weights. ema.decay must not be 0.
  std::optional<double> evaluate_average();

  /// Continues the counts of an earlier process. To be called before the first
  /// step.
  void start_from(const TrainState& state);
  /// Returns the state of the run after `step` steps in total.
  TrainState state_after(int64_t step) const;
  /// Makes later phases of steps spans of `tracer`, which must outlive this.
  /// Null records none.
  void set_tracer(const StepTracer* tracer) { tracer_ = tracer; }
  /// These functions set the clock that counts the time of phases and the
  /// checker that is called before and after every update. Both must outlive
  /// this. Null disables them.
  void set_phase_clock(PhaseClock* clock) { phase_clock_ = clock; }
  void set_integrity_checker(IntegrityChecker* integrity_checker) {
    integrity_checker_ = integrity_checker;
  }
  /// Sets a function that returns true if this rank was asked to stop. Ranks
  /// exchange its result in train_step(), evaluate() and
  /// all_reduce_stop_request().
  void set_stop_request(std::function<bool()> is_asked) {
    is_stop_requested_ = std::move(is_asked);
  }
  /// Exchanges the stop requests of all ranks and returns should_stop().
  /// Collective: all ranks; blocks.
  bool all_reduce_stop_request();
  /// Returns true if a rank was asked to stop, as of the last exchange. The
  /// result is the same on all ranks.
  bool should_stop() const { return should_stop_; }

  TrainJob& job() { return job_; }
  const config::Recipe& recipe() const { return recipe_; }
  /// Describes the model, mesh, data and steps in one line.
  std::string describe() const;

 private:
  int64_t global_tokens() const;
  // See Note [Messages of a step].
  double all_reduce_scalar(double value, bool is_finite = true);
  /// The message over dp.
  struct LossMessage {
    at::Tensor sums;
    std::function<void()> wait;
    bool is_asked = false;
    bool leaves = false;
  };
  LossMessage start_losses(const std::vector<double>& losses, bool is_finite);
  double finish_losses(
      const LossMessage& message,
      const dtensor::GradNorm& norm);
  bool is_meant_alone();
  void register_state();
  void warm_up();
  /// Computes and reduces the gradients of a step.
  std::vector<MicroLoss> compute_gradients(int64_t step, StepMetrics& metrics);
  /// Does the same with the other groups, which decide on the step, until all
  /// have complete gradients.
  std::vector<MicroLoss> compute_gradients_together(StepMetrics& metrics);
  elastic::Step begin_step_together();
  /// Micro-batches whose gradients are accumulated and then reduced.
  struct Part {
    /// The lane of an elastic run that it is, if there are lanes.
    std::optional<int64_t> lane;
    /// None if this group gets the state while the others compute.
    std::vector<int64_t> micro_batches;

    static Part of_range(int64_t begin, int64_t end);
  };
  std::vector<Part> parts_of(const elastic::Step& step) const;
  void forward_backward(
      const data::Batch& batch,
      int64_t step,
      const std::function<void(const at::Tensor&)>& take_loss);
  /// The loss of a micro-batch, whose number is not read yet.
  struct PendingLoss {
    MicroLoss micro;
    int64_t lane = 0;
    at::Tensor value;
  };
  void accumulate_gradients(
      const Part& part,
      StepMetrics& metrics,
      std::vector<PendingLoss>& losses,
      const std::function<void()>& before_reduction);
  void update(double lr, double gradient_norm);
  void skip_or_stop(int64_t step, const std::vector<MicroLoss>& losses);
  double comm_ms() const;
  struct PhaseSpan {
    TraceSpan trace;
    PhaseClock::Span time;
  };
  /// `phase` must be a string literal.
  PhaseSpan span(const char* phase) const;

  config::Recipe recipe_;
  mesh::World world_;
  data::BatchLoader loader_;
  std::string data_fingerprint_;
  TrainJob job_;
  const StepTracer* tracer_ = nullptr;
  /// The current step, counted from 1. 0 before the first step.
  int64_t step_ = 0;
  PhaseClock* phase_clock_ = nullptr;
  IntegrityChecker* integrity_checker_ = nullptr;
  std::function<bool()> is_stop_requested_;
  bool should_stop_ = false;
  bool is_finite_ = true;
  /// Whether all ranks of the group have complete gradients.
  bool is_prepared_ = true;
  double gradient_norm_ = 0;
  bool keeps_local_norms_ = false;
  NonFinitePolicy non_finite_;
  std::string skip_note_;
  /// The state of the run when this process began, or got it.
  TrainState start_;

  // Of an elastic run.
  std::unique_ptr<elastic::Manager> manager_;
  /// The step after the last one, if it has begun.
  std::optional<elastic::Step> begun_;
  bool leads_ = true;
  int64_t groups_ = 0;
  /// Whether this group alone has been asked to stop. It tells the others with
  /// the next step.
  bool leaves_ = false;
  /// The step in which the groups are, or null. In one, messages are of all of
  /// them.
  elastic::Step* in_step_ = nullptr;
  /// Whether this process has computed gradients, which plans the buckets.
  bool has_computed_ = false;
  /// The part of the current step that this rank computes.
  std::vector<Part> parts_;
  /// ddp::local_norms() after each of them but the last.
  std::vector<ddp::LocalNorm> earlier_norms_;
};

} // namespace weft::train
