#include "recipes/train/trainer.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "checkpoint/error.h"
#include "dtensor/clip_grad.h"
#include "mesh/device.h"
#include "mesh/error.h"
#include "mesh/ledger.h"
#include "recipes/data/staging.h"
#include "recipes/train/lr_schedule.h"

namespace weft::recipes {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

mesh::DeviceMesh make_mesh(const Recipe& recipe, const mesh::World& world) {
  world.check_agreement("recipe", to_yaml(recipe));
  return mesh::DeviceMesh::create(
      world, {recipe.mesh.dp, recipe.mesh.tp}, {"dp", "tp"});
}

BatchLoader open_data(const Recipe& recipe, const mesh::World& world) {
  // Row-major mesh: tp ranks of one replica are neighbours.
  auto loader = BatchLoader::open(recipe, world.rank() / recipe.mesh.tp);
  world.check_agreement(
      "data (names and sizes of the files)",
      loader.corpus().fingerprint_text());
  return loader;
}

[[noreturn]] void
throw_non_finite(const char* what, double value, int64_t step) {
  mesh::throw_error<NonFiniteError>(fmt::format(
      "the {} of step {} is {}: nothing was updated. Lower optimizer.lr, or "
      "look at the data of that step.",
      what,
      step + 1,
      value));
}

} // namespace

Trainer::Trainer(Recipe recipe, const mesh::World& world)
    : recipe_(std::move(recipe)),
      world_(world),
      loader_(open_data(recipe_, world)),
      job_(make_llama_job(recipe_, make_mesh(recipe_, world))) {}

int64_t Trainer::global_tokens() const {
  return recipe_.train.global_batch_size * recipe_.data.sequence_length;
}

double Trainer::sum_over_replicas(double value) {
  auto total = at::full({1}, value, at::kDouble);
  job_.mesh.group("dp").all_reduce(total, mesh::ReduceOp::kSum, "loss").wait();
  return total.item<double>();
}

double Trainer::comm_ms() const {
  int64_t blocked = 0;
  for (const auto* dim : {"dp", "tp"}) {
    blocked += job_.mesh.group(dim).ledger().blocked_ns();
  }
  return static_cast<double>(blocked) * 1e-6;
}

// The loss is left where it is: reading it would make the host wait for a
// device.
at::Tensor Trainer::forward_backward(const Batch& batch) {
  const auto here = to_device(batch, world_.device());
  const auto loss =
      token_loss((*job_.ddp)(here.tokens), here.targets, global_tokens());
  loss.backward();
  return loss.detach();
}

// All micro-batches of a step; gradients are reduced with the last one's.
double Trainer::accumulate_gradients(int64_t step, double& data_ms) {
  std::vector<at::Tensor> losses;
  const int64_t first_sample = state_after(step).next_sample;
  const int64_t micro_steps = loader_.accumulation_steps();
  for (int64_t a = 0; a < micro_steps; ++a) {
    const auto start = Clock::now();
    const auto batch = loader_.train(first_sample, a);
    data_ms += milliseconds_since(start);
    if (a + 1 < micro_steps) {
      const auto local_only = job_.ddp->no_sync();
      losses.push_back(forward_backward(batch));
    } else {
      losses.push_back(forward_backward(batch));
    }
  }
  double loss_sum = 0;
  for (const auto& loss : losses) {
    loss_sum += loss.item<double>();
  }
  return loss_sum;
}

StepMetrics Trainer::train_step(int64_t step) {
  const auto start = Clock::now();
  const double comm_before = comm_ms();
  StepMetrics metrics;
  metrics.step = step + 1;
  const double own_loss = accumulate_gradients(step, metrics.data_ms);
  metrics.loss = sum_over_replicas(own_loss);
  const auto parameters = job_.model->parameters();
  const double max_norm = recipe_.train.max_grad_norm;
  metrics.grad_norm = max_norm > 0
                          ? dtensor::clip_grad_norm_(parameters, max_norm)
                          : dtensor::grad_norm(parameters);
  world_.check();
  if (!std::isfinite(metrics.loss)) {
    throw_non_finite("loss", metrics.loss, step);
  }
  if (!std::isfinite(metrics.grad_norm)) {
    throw_non_finite("gradient norm", metrics.grad_norm, step);
  }
  metrics.lr = learning_rate(
      recipe_.lr_schedule, recipe_.optimizer.lr, recipe_.train.steps, step);
  job_.optimizer->set_lr(metrics.lr);
  job_.optimizer->step();
  job_.optimizer->zero_grad();

  metrics.tokens = state_after(step + 1).tokens;
  metrics.comm_ms = comm_ms() - comm_before;
  metrics.step_ms = milliseconds_since(start);
  metrics.tokens_per_s =
      static_cast<double>(global_tokens()) / metrics.step_ms * 1e3;
  metrics.peak_rss_mb = peak_rss_mb();
  metrics.peak_device_mb = mesh::peak_device_mb(world_.device());
  return metrics;
}

double Trainer::evaluate() {
  const at::NoGradGuard no_grad;
  job_.model->eval();
  const int64_t batches = loader_.num_heldout_batches(recipe_.eval.batches);
  double sum = 0;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t a = 0; a < loader_.accumulation_steps(); ++a) {
      const auto batch = to_device(loader_.heldout(b, a), world_.device());
      sum +=
          token_loss(
              job_.model->forward(batch.tokens), batch.targets, global_tokens())
              .item<double>();
    }
  }
  job_.model->train();
  const double mean = sum_over_replicas(sum) / static_cast<double>(batches);
  world_.check();
  return mean;
}

// After `step` steps in all, of which this process does those after start_.
TrainState Trainer::state_after(int64_t step) const {
  const int64_t own = step - start_.step;
  return {
      .step = step,
      .tokens = start_.tokens + own * global_tokens(),
      .next_sample = start_.next_sample + own * recipe_.train.global_batch_size,
      .data_fingerprint = loader_.corpus().fingerprint_text()};
}

void Trainer::say(const std::string& text) const {
  if (progress_) {
    progress_->message(text);
  }
}

void Trainer::open_outputs() {
  progress_ = std::make_unique<Progress>(
      stdout,
      Progress::Options{
          .total_steps = recipe_.train.steps,
          .log_every = recipe_.train.log_every,
          .is_terminal = isatty(STDOUT_FILENO) == 1});
  int64_t count = 0;
  for (const auto& parameter : job_.model->parameters()) {
    count += parameter.numel();
  }
  say(fmt::format(
      "{}: Llama with {:.2f} M parameters on dp={} tp={}, {:.1f} MB of text, "
      "{} steps of {} x {} tokens",
      recipe_.name,
      static_cast<double>(count) * 1e-6,
      recipe_.mesh.dp,
      recipe_.mesh.tp,
      static_cast<double>(loader_.corpus().size()) * 1e-6,
      recipe_.train.steps,
      recipe_.train.global_batch_size,
      recipe_.data.sequence_length));
  if (recipe_.checkpoint.async) {
    say("checkpoint.async: this version saves synchronously; training waits "
        "for each save");
  }
}

void Trainer::resume(RunStore& store) {
  const auto dicts = state_dicts(job_);
  const auto found = store.resume(dicts);
  if (found) {
    adopt_state(job_, dicts, recipe_);
    start_ = found->state;
    if (found->layout.mesh == job_.mesh.to_string() &&
        !found->layout.buckets.empty()) {
      job_.ddp->set_bucket_layout(found->layout.buckets);
    }
  }
  if (world_.rank() != 0) {
    return;
  }
  metrics_ = std::make_unique<MetricsLog>(metrics_path(recipe_), start_.step);
  if (found && metrics_->last_step() + 1 == start_.step) {
    metrics_->write_line(found->layout.metrics_line); // Killed before it.
  }
  std::ofstream(std::filesystem::path(recipe_.output_dir) / "recipe.yaml")
      << to_yaml(recipe_);
  say(found ? fmt::format(
                  "resumes from {}: step {}, {} samples and {} tokens done{}",
                  found->folder.string(),
                  start_.step,
                  start_.next_sample,
                  start_.tokens,
                  found->layout.mesh == job_.mesh.to_string()
                      ? ""
                      : fmt::format(" on {}", found->layout.mesh))
            : "starts from step 0");
}

bool Trainer::save(RunStore& store, StepMetrics& metrics) {
  const auto start = Clock::now();
  const auto layout = RunLayout{
      .mesh = job_.mesh.to_string(),
      .buckets = job_.ddp->bucket_names(),
      .recipe = to_yaml(recipe_),
      .metrics_line = metrics_line(metrics)};
  const bool saved =
      store.save(state_dicts(job_), state_after(metrics.step), layout);
  metrics.checkpoint_ms += milliseconds_since(start);
  return saved;
}

void Trainer::save_last(RunStore& store, StepMetrics& metrics) {
  if (!save(store, metrics) && !save(store, metrics)) {
    mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
        "step {}, the last one, could not be saved in {}, tried twice. Make "
        "room there and run the same command again: it goes on from the "
        "checkpoint before.",
        metrics.step,
        store.path().string()));
  }
}

void Trainer::train_to_the_end(RunStore& store) {
  const int64_t steps = recipe_.train.steps;
  const auto is_due = [](int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
  };
  for (int64_t step = start_.step; step < steps; ++step) {
    auto metrics = train_step(step);
    const bool is_last = step + 1 == steps;
    if (is_last || is_due(step + 1, recipe_.eval.every)) {
      metrics.eval_loss = evaluate();
    }
    if (is_last) {
      save_last(store, metrics);
    } else if (is_due(step + 1, recipe_.checkpoint.every)) {
      save(store, metrics);
    }
    if (metrics_) {
      metrics_->write(metrics);
      progress_->step_done(metrics);
      if (metrics.eval_loss) {
        progress_->eval_done(metrics.step, *metrics.eval_loss);
      }
    }
  }
}

void Trainer::run(bool fresh) {
  if (world_.rank() == 0) {
    open_outputs();
  }
  RunStore store(
      recipe_, world_, fresh, [this](const auto& text) { say(text); });
  resume(store);
  if (start_.step >= recipe_.train.steps) {
    say(fmt::format(
        "finished already, at step {}: see {}. A larger train.steps goes on, "
        "--fresh starts over",
        start_.step,
        recipe_.output_dir));
    return;
  }
  train_to_the_end(store);
  say(fmt::format(
      "done: {} steps, see {}", recipe_.train.steps, recipe_.output_dir));
}

} // namespace weft::recipes
