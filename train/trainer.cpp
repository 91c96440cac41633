#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "data/batch_loader.h"
#include "ddp/reducer/local_norms.h"
#include "dtensor/nn/clip_grad.h"
#include "dtensor/random/random_state.h"
#include "elastic/manager.h"
#include "mesh/communicator/exchange.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/device/device.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/activity.h"
#include "models/registry.h"
#include "train/health/integrity_checker.h"
#include "train/setup/job_mesh.h"
#include "train/setup/loss.h"
#include "train/setup/lr_schedule.h"
#include "train/setup/preflight.h"
#include "train/setup/products.h"
#include "train/store/link_costs.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

mesh::DeviceMesh make_mesh(config::Recipe& recipe, const mesh::World& world) {
  auto mesh = make_job_mesh(recipe, world);
  resolve_link_costs(recipe, mesh);
  return mesh;
}

// Random ops of a step are seeded with its number, and count samples by their
// position in the global batch. So dropout does not depend on the mesh, on
// gradient accumulation, or on the step at which a run resumed.
dtensor::RandomState random_state_of(
    const config::Recipe& recipe,
    int64_t step) {
  return {
      .seed = static_cast<uint64_t>(recipe.seed),
      .sequence = static_cast<uint64_t>(step + 1) << 32};
}

} // namespace

bool says_rank_0(const mesh::World& world, bool holds, std::string_view what) {
  auto group = world.group();
  const auto numbers =
      mesh::gather_numbers(group, {holds ? 1 : 0}, at::kCPU, what);
  return numbers[0][0].item<int64_t>() != 0;
}

TrainerInputs open_inputs(
    config::Recipe recipe,
    const mesh::World& world,
    std::optional<data::BatchLoader> data) {
  resolve_products(recipe);
  if (!data) {
    data = data::BatchLoader::open(recipe, batch_rank(recipe, world.rank()));
  }
  check_runs_agree(recipe, data->data().fingerprint_text(), world);
  return {.recipe = std::move(recipe), .data = *std::move(data)};
}

Trainer::Trainer(TrainerInputs inputs, const mesh::World& world)
    : recipe_(std::move(inputs.recipe)),
      world_(world),
      loader_(std::move(inputs.data)),
      data_fingerprint_(loader_.data().fingerprint_text()),
      job_(make_train_job(recipe_, make_mesh(recipe_, world))),
      non_finite_(recipe_.train),
      parts_({Part::of_range(0, loader_.accumulation_steps())}) {}

Trainer::~Trainer() = default;

Trainer::Part Trainer::Part::of_range(int64_t begin, int64_t end) {
  Part result;
  result.micro_batches.resize(static_cast<size_t>(end - begin));
  std::iota(result.micro_batches.begin(), result.micro_batches.end(), begin);
  return result;
}

int64_t Trainer::global_tokens() const {
  return targets_per_step(recipe_);
}

// Note [Messages of a step]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// After backward, ranks exchange the loss, the norm of the gradients, whether a
// rank should stop and whether all values are finite. They send one message
// over dp and one over tp, and none over a mesh dim of size 1. The norm is a
// sum over tp, and the loss is a sum over dp. One message over all ranks would
// add the terms of the norm in another order, so that a run would have
// different bits over gloo and NCCL. On several hosts, such a message would
// consist of one inside each host and one between hosts anyway. The message
// over tp is the last one, and passes on what each rank of the model-parallel
// group got from the replicas.
//
// With replica groups, the message over dp is sent while gradients are
// computed, because another message follows, which tells whether all groups are
// prepared. It contains whether the losses are finite; the gradients are equal
// on all groups afterwards. With the message over tp, the ranks of a group vote
// on being prepared.

// Starts the sum of the losses over the replicas. The message also contains
// whether a rank should stop, and whether its values are finite, which can
// differ between tensor-parallel ranks.
Trainer::LossMessage Trainer::start_losses(
    const std::vector<double>& losses,
    bool is_finite) {
  const bool is_asked = is_stop_requested_ && is_stop_requested_();
  const bool is_elastic = in_step_ != nullptr;
  // With several groups, the request may concern this group only.
  // finish_losses() decides that.
  const bool stops =
      is_asked && (!is_elastic || groups_ <= 1 || manager_->is_run_ending());
  const bool leaves = is_elastic && leaves_;
  LossMessage result{
      .sums = at::cat(
          {at::tensor(
               {is_finite ? 0.0 : 1.0, stops ? 1.0 : 0.0, leaves ? 1.0 : 0.0},
               at::kDouble),
           at::tensor(losses, at::kDouble)}),
      .wait = [] {},
      .is_asked = is_asked,
      .leaves = leaves};
  if (is_elastic) {
    result.wait = in_step_->start_sum_over_groups(result.sums, "loss");
    return result;
  }
  const auto batch = batch_mesh(job_.mesh);
  if (batch.size() > 1) {
    auto work =
        batch.group(0).all_reduce(result.sums, mesh::ReduceOp::kSum, "loss");
    result.wait = [work]() mutable { work.wait(); };
  }
  return result;
}

// Returns the sum of the losses over the replicas and then over the parts of
// the batch in their order.
double Trainer::finish_losses(
    const LossMessage& message,
    const dtensor::GradNorm& norm) {
  message.wait();
  const bool is_elastic = in_step_ != nullptr;
  const bool is_prepared = !is_elastic || in_step_->is_prepared();
  const double* sums = message.sums.const_data_ptr<double>();
  const auto over_tp = at::tensor(
      {sums[0] + (norm.is_finite() ? 0.0 : 1.0),
       sums[1],
       message.is_asked ? 1.0 : 0.0,
       is_prepared ? 0.0 : 1.0},
      at::kDouble);
  gradient_norm_ = norm.all_reduce(job_.mesh["tp"], over_tp);
  const double* counts = over_tp.const_data_ptr<double>();
  is_finite_ = counts[0] == 0 && std::isfinite(gradient_norm_);
  is_prepared_ = counts[3] == 0;
  if (!manager_) {
    should_stop_ = counts[1] > 0;
  } else if (is_elastic && is_prepared_) {
    // The groups decide together. If all of them want to leave, the run stops,
    // because one group has to save.
    should_stop_ = counts[1] > 0 || sums[2] >= double(groups_);
    if (message.leaves && !should_stop_) {
      manager_->leave_after_step();
    }
    leaves_ = leaves_ || (counts[2] > 0 && is_meant_alone());
  }
  const int64_t parts = message.sums.numel() - 3;
  return std::accumulate(sums + 3, sums + 3 + parts, 0.0);
}

double Trainer::all_reduce_scalar(double value, bool is_finite) {
  return finish_losses(start_losses({value}, is_finite), dtensor::GradNorm({}));
}

bool Trainer::all_reduce_stop_request() {
  if (!manager_) {
    all_reduce_scalar(0);
  }
  return should_stop_;
}

double Trainer::comm_ms() const {
  int64_t blocked = 0;
  for (int64_t dim = 0; dim < job_.mesh.ndim(); ++dim) {
    blocked += job_.mesh.group(dim).flight_recorder().blocked_ns();
  }
  if (manager_) {
    blocked += manager_->blocked_ns();
  }
  return static_cast<double>(blocked) * 1e-6;
}

// Calls `take_loss` between forward and backward. The loss stays on its device,
// because reading it would block the host.
void Trainer::forward_backward(
    const data::Batch& batch,
    int64_t step,
    const std::function<void(const at::Tensor&)>& take_loss) {
  const dtensor::RandomScope random(
      job_.mesh,
      random_state_of(recipe_, step),
      dtensor::RandomBatch{
          .dim = 0,
          .first_sample = batch.first_sample,
          .samples = batch.input.size(0),
          .global_samples = recipe_.train.global_batch_size});
  at::Tensor loss;
  {
    const auto phase = span("forward");
    const auto here = data::to_device(batch, world_.device());
    loss = training_loss(
        recipe_,
        *job_.model,
        job_.data_parallel->forward(here.input),
        here.target);
  }
  take_loss(loss.detach());
  const auto phase = span("backward");
  (job_.loss_scale == 1.0 ? loss : loss * job_.loss_scale).backward();
}

// Appends the losses of the micro-batches. The gradients are reduced in the
// backward of the last micro-batch. `before_reduction` is called before it.
void Trainer::accumulate_gradients(
    const Part& part,
    StepMetrics& metrics,
    std::vector<PendingLoss>& losses,
    const std::function<void()>& before_reduction) {
  const int64_t step = metrics.step - 1;
  const int64_t first_sample = state_after(step).next_sample;
  if (part.micro_batches.empty()) {
    const auto phase = span("backward");
    before_reduction();
    job_.ddp->reduce_without_inputs([this] { in_step_->wait_for_transfer(); });
    return;
  }
  for (const auto index : part.micro_batches) {
    const auto batch = [&] {
      const auto phase = span("data");
      const auto start = Clock::now();
      auto next = loader_.train(first_sample, index);
      metrics.data_ms += milliseconds_since(start);
      return next;
    }();
    const auto keep = [&](const at::Tensor& loss) {
      losses.push_back(
          {.micro =
               {.first_sample = first_sample + batch.first_sample,
                .samples = batch.input.size(0)},
           .lane = part.lane.value_or(0),
           .value = loss});
    };
    if (index != part.micro_batches.back()) {
      const auto local_only = job_.data_parallel->no_sync();
      forward_backward(batch, step, keep);
    } else {
      forward_backward(batch, step, [&](const at::Tensor& loss) {
        keep(loss);
        before_reduction();
      });
    }
  }
  has_computed_ = true;
}

void Trainer::update(double lr, double gradient_norm) {
  if (recipe_.train.max_grad_norm > 0) {
    const auto phase = span("clip");
    dtensor::clip_grads_with_norm_(
        job_.model->parameters(), recipe_.train.max_grad_norm, gradient_norm);
  }
  const auto phase = span("optimizer");
  if (job_.average) {
    job_.average->begin();
  }
  job_.optimizer->set_lr(lr);
  job_.optimizer->step();
  job_.optimizer->zero_grad();
  if (job_.average) {
    job_.average->update();
  }
}

void Trainer::check_weights(int64_t step) {
  all_reduce_scalar(0, are_weights_finite(*job_.model));
  if (!is_finite_) {
    auto world = world_.group();
    throw_non_finite_weights(
        step, explain_non_finite(world, find_non_finite(*job_.model, {})).text);
  }
}

Trainer::PhaseSpan Trainer::span(const char* phase) const {
  mesh::note_activity(phase, step_);
  return {
      tracer_ ? tracer_->span(phase) : TraceSpan(nullptr, phase),
      PhaseClock::Span(phase_clock_, phase)};
}

// Must be called before the gradients are scaled or changed, because it
// searches them for the cause.
void Trainer::skip_or_stop(int64_t step, const std::vector<MicroLoss>& losses) {
  auto world = world_.group();
  skip_note_ = non_finite_.on_non_finite(
      step + 1,
      explain_non_finite(
          world, find_non_finite(*job_.model, losses, earlier_norms_)));
  job_.optimizer->zero_grad();
}

std::vector<MicroLoss> Trainer::compute_gradients(
    int64_t step,
    StepMetrics& metrics) {
  metrics.step = step_ = step + 1;
  std::vector<PendingLoss> pending;
  std::vector<MicroLoss> losses;
  std::vector<double> sums(std::max<int64_t>(recipe_.elastic.lanes, 1));
  // Blocks the host until the device has computed the losses.
  const auto read_losses = [&] {
    for (auto& each : pending) {
      each.micro.loss = each.value.item<double>();
      sums[each.lane] += each.micro.loss;
      losses.push_back(each.micro);
    }
    return std::ranges::all_of(
        sums, [](const double sum) { return std::isfinite(sum); });
  };
  std::optional<LossMessage> message;
  earlier_norms_.clear();
  for (const auto& part : parts_) {
    std::optional<elastic::LaneScope> lane;
    if (part.lane) {
      lane.emplace(in_step_->enter_lane(*part.lane));
    }
    if (&part != &parts_.front()) {
      const auto norms = ddp::local_norms(job_.model->parameters());
      earlier_norms_.insert(earlier_norms_.end(), norms.begin(), norms.end());
      job_.optimizer->zero_grad();
    }
    accumulate_gradients(part, metrics, pending, [&] {
      if (in_step_ && &part == &parts_.back()) {
        const bool is_finite = read_losses();
        message = start_losses(sums, is_finite);
      }
    });
  }
  const bool is_finite = message || read_losses();
  const auto phase = span("clip");
  const dtensor::GradNorm norm(job_.model->parameters());
  if (!message) {
    message = start_losses(sums, is_finite && norm.is_finite());
  }
  metrics.loss = finish_losses(*message, norm);
  metrics.grad_norm = gradient_norm_;
  return losses;
}

StepMetrics Trainer::train_step(int64_t step) {
  const auto start = Clock::now();
  const double comm_before = comm_ms();
  if (!keeps_local_norms_) {
    job_.data_parallel->synchronize_parameters();
    ddp::enable_local_norms(job_.model->parameters());
    keeps_local_norms_ = true;
  }
  StepMetrics metrics;
  const auto losses = manager_ ? compute_gradients_together(metrics)
                               : compute_gradients(step, metrics);
  if (is_over()) {
    return metrics;
  }
  step = metrics.step - 1;
  world_.check();
  metrics.lr = learning_rate(
      recipe_.lr_schedule, recipe_.optimizer.lr, recipe_.train.steps, step);
  metrics.skipped = !is_finite_;
  if (metrics.skipped) {
    skip_or_stop(step, losses);
    if (std::isfinite(metrics.loss)) { // the norm of some rank is not finite
      metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
    }
  } else {
    non_finite_.on_finite();
    skip_note_.clear();
    if (integrity_checker_) {
      integrity_checker_->before_update();
    }
    update(metrics.lr, metrics.grad_norm);
    if (integrity_checker_) {
      integrity_checker_->after_update(state_after(step + 1));
    }
  }

  metrics.tokens = state_after(step + 1).tokens;
  metrics.comm_ms = comm_ms() - comm_before;
  metrics.step_ms = milliseconds_since(start);
  metrics.tokens_per_s =
      static_cast<double>(global_tokens()) / metrics.step_ms * 1e3;
  metrics.peak_rss_mb = peak_rss_mb();
  metrics.peak_device_mb = mesh::peak_device_mb(world_.device());
  return metrics;
}

// ---- evaluation -------------------------------------------------------------

std::optional<double> Trainer::evaluate() {
  const at::NoGradGuard no_grad;
  job_.model->eval();
  const auto back = c10::make_scope_exit([&] { job_.model->train(); });
  const int64_t batches = loader_.num_heldout_batches(recipe_.eval.batches);
  const int64_t micro_steps = loader_.accumulation_steps();
  double sum = 0;
  for (int64_t i = 0; i < batches * micro_steps; ++i) {
    // An evaluation may take longer than the grace period after a stop signal.
    if (is_stop_requested_ && all_reduce_stop_request()) {
      return std::nullopt;
    }
    const auto batch = data::to_device(
        loader_.heldout(i / micro_steps, i % micro_steps), world_.device());
    sum += token_loss(
               job_.data_parallel->forward(batch.input),
               batch.target,
               global_tokens())
               .item<double>();
  }
  const double mean = all_reduce_scalar(sum) / static_cast<double>(batches);
  world_.check();
  return mean;
}

std::optional<double> Trainer::evaluate_average() {
  job_.average->swap();
  const auto back = c10::make_scope_exit([&] { job_.average->swap(); });
  return evaluate();
}

void Trainer::start_from(const TrainState& state) {
  start_ = state;
  non_finite_.set_streak(state.skipped_in_a_row);
}

// Returns the state after `step`. This process trains the steps after start_.
TrainState Trainer::state_after(int64_t step) const {
  const int64_t own = step - start_.step;
  return {
      .step = step,
      .tokens = start_.tokens + own * global_tokens(),
      .next_sample = start_.next_sample + own * recipe_.train.global_batch_size,
      .data_fingerprint = data_fingerprint_,
      .skipped_in_a_row = non_finite_.streak()};
}

std::string Trainer::describe() const {
  int64_t count = 0;
  for (const auto& parameter : job_.model->parameters()) {
    count += parameter.numel();
  }
  return fmt::format(
      "{}: {} with {:.2f} M parameters on {}, {}, {} steps of {}",
      recipe_.name,
      models::model_title(recipe_),
      static_cast<double>(count) * 1e-6,
      recipe_.mesh.to_string(),
      loader_.data().describe(),
      recipe_.train.steps,
      describe_batch(recipe_));
}

} // namespace weft::train
