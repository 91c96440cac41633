#include "recipes/train/run.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "checkpoint/error.h"
#include "mesh/error.h"
#include "recipes/hub/config.h"
#include "recipes/hub/export_model.h"
#include "recipes/trace/step_tracer.h"
#include "recipes/train/initial_weights.h"
#include "recipes/train/planner_links.h"
#include "recipes/train/run_outputs.h"
#include "recipes/train/run_store.h"
#include "recipes/train/stop_signal.h"
#include "recipes/train/trainer.h"

namespace weft::recipes {
namespace {

using Clock = std::chrono::steady_clock;

bool is_due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

// That the folder that the run will become is not there yet.
void check_export(const Recipe& recipe) {
  constexpr const char* kExportKey = "checkpoint.export_to";
  const auto& folder = recipe.checkpoint.export_to;
  if (folder.empty()) {
    return;
  }
  try {
    hub::check_is_free(folder);
  } catch (const mesh::UsageError& error) {
    refuse(recipe, kExportKey, error.what_without_backtrace());
  }
}

// As a checkpoint keeps it: model.from wherever it is read.
std::string stored_text(Recipe recipe) {
  if (!recipe.model.from.empty()) {
    recipe.model.from = hub::lasting_path(recipe.model.from);
  }
  return to_yaml(recipe);
}

class Run {
 public:
  Run(const Recipe& recipe, const mesh::World& world, bool fresh)
      : trainer_(with_earlier_links(recipe, fresh), world),
        recipe_(trainer_.recipe()),
        outputs_(
            world.rank() == 0 ? std::make_unique<RunOutputs>(recipe_)
                              : nullptr),
        store_(recipe_, world, fresh, [this](const auto& text) { say(text); }),
        starts_over_(fresh || recipe_.checkpoint.resume == "never"),
        tracer_(
            recipe_.trace,
            recipe_.output_dir,
            world,
            trainer_.job().mesh,
            *trainer_.job().model) {}

  void run() {
    say(trainer_.describe());
    say(links_text(recipe_));
    const int64_t first = resume();
    if (first >= recipe_.train.steps) {
      say(fmt::format(
          "finished already, at step {}: see {}. A larger train.steps goes on, "
          "--fresh starts over",
          first,
          recipe_.output_dir));
      if (!std::filesystem::exists(recipe_.checkpoint.export_to)) {
        export_at(first);
      }
      return;
    }
    check_export(recipe_);
    // Whatever ends the run, its report says how far it came.
    const auto end = c10::make_scope_exit([this] {
      if (outputs_) {
        outputs_->end();
      }
    });
    trainer_.set_tracer(&tracer_);
    if (auto& average = trainer_.job().average) {
      average->begin();
    }
    if (recipe_.checkpoint.every > 0) {
      store_.saver().prepare(state_dicts(trainer_.job()));
    }
    run_steps(first);
    say(tracer_.finish());
    export_at(recipe_.train.steps);
    say(fmt::format(
        "done: {} steps, see {}", recipe_.train.steps, recipe_.output_dir));
  }

 private:
  void say(const std::string& text) {
    if (outputs_) {
      outputs_->say(text);
    }
  }

  /// Returns the first step to do, from 0.
  int64_t resume() {
    auto& job = trainer_.job();
    auto dicts = state_dicts(job);
    dicts.erase(kCommHookPart);
    const auto found =
        store_.resume(dicts, [&](const auto& manifest, const auto& layout) {
          return more_to_load(job, manifest, layout.mesh);
        });
    if (found) {
      adopt_state(job, dicts, recipe_);
      adopt_hook_state(found->more);
      check_average(found->more);
      trainer_.start_from(found->state);
      if (found->layout.mesh == job.mesh.to_string() &&
          !found->layout.buckets.empty()) {
        job.ddp->set_bucket_layout(found->layout.buckets.at(
            static_cast<size_t>(job.mesh.coordinate("tp"))));
      }
    }
    if (outputs_) {
      outputs_->begin(found, *job.model, job.mesh);
    }
    if (!found && has_initial_weights(recipe_)) {
      say(load_initial_weights(recipe_, job));
    }
    return found ? found->state.step : 0;
  }

  void adopt_hook_state(const checkpoint::StateDicts& loaded) {
    auto& ddp = *trainer_.job().ddp;
    if (const auto part = loaded.find(kCommHookPart); part != loaded.end()) {
      ddp.load_comm_hook_state_dict(part->second);
    } else if (recipe_.ddp.comm_hook.ends_with("powersgd")) {
      say("the comm hook starts anew: its state was saved on another mesh, or "
          "not at all");
    }
  }

  void check_average(const checkpoint::StateDicts& loaded) {
    if (trainer_.job().average && !loaded.contains(kAveragePart)) {
      trainer_.job().average->forget();
      say("ema: the checkpoint has no average; it begins at the weights");
    }
  }

  // By rank 0; the others are done.
  void export_at(int64_t step) {
    const auto& folder = recipe_.checkpoint.export_to;
    if (!outputs_ || folder.empty()) {
      return;
    }
    const auto done =
        hub::export_model(checkpoint::step_path(store_.path(), step), folder);
    for (const auto& note : done.notes) {
      say(note);
    }
    say(fmt::format("exported {}: {}", folder, hub::describe(done)));
  }

  void run_steps(int64_t first) {
    const StopSignal stop;
    trainer_.set_stop_request(StopSignal::has_come);
    for (int64_t step = first; step < recipe_.train.steps; ++step) {
      run_step(step);
    }
  }

  void run_step(int64_t step) {
    tracer_.begin_step(step + 1);
    store_.saver().look();
    auto metrics = trainer_.train_step(step);
    const bool is_last = step + 1 == recipe_.train.steps;
    if (recipe_.eval.batches > 0 &&
        (is_last || is_due(step + 1, recipe_.eval.every))) {
      evaluate(metrics);
    }
    const bool stops = trainer_.should_stop() && !is_last;
    bool saved = false;
    if (is_last || stops || is_due(step + 1, recipe_.checkpoint.every)) {
      const auto span = tracer_.span("checkpoint");
      saved = save(metrics, is_last || stops);
    }
    if (is_last && !saved) {
      throw_last_not_saved(metrics.step);
    }
    const auto note = tracer_.end_step(step + 1);
    if (outputs_) {
      outputs_->step_done(metrics);
    }
    say(note);
    if (stops) {
      throw_preempted(metrics.step, saved);
    }
  }

  void evaluate(StepMetrics& metrics) {
    const auto span = tracer_.span("eval");
    metrics.eval_loss = trainer_.evaluate();
    if (recipe_.ema.eval) {
      metrics.ema_eval_loss = trainer_.evaluate_average();
    }
  }

  // Returns whether the step is saved; one that is saved in the background is
  // not, yet. `waits`: the process will end.
  bool save(StepMetrics& metrics, bool waits) {
    const auto start = Clock::now();
    auto& job = trainer_.job();
    const RunLayout layout{
        .mesh = job.mesh.to_string(),
        .buckets =
            gather_bucket_names(job.mesh.group("tp"), job.ddp->bucket_names()),
        .cost_model = recipe_.cost_model,
        .links = recipe_.links,
        .recipe = stored_text(recipe_),
        .metrics_line = metrics_line(metrics)};
    const auto content =
        store_.content(trainer_.state_after(metrics.step), layout);
    bool saved = false;
    if (waits) {
      saved = store_.saver().save_now(state_dicts(job), content);
    } else {
      store_.saver().save(state_dicts(job), content);
    }
    metrics.checkpoint_ms =
        std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    return saved;
  }

  [[noreturn]] void throw_last_not_saved(int64_t step) const {
    mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
        "step {}, the last one, could not be saved in {}, tried twice. Make "
        "room there and run the same command again: it goes on from the "
        "checkpoint before.",
        step,
        store_.path().string()));
  }

  [[noreturn]] void throw_preempted(int64_t step, bool saved) const {
    mesh::throw_error<PreemptedError>(
        saved ? fmt::format(
                    "SIGTERM: step {} is saved in {}, and the same command "
                    "goes on from there{}",
                    step,
                    store_.path().string(),
                    starts_over_ ? ", without --fresh or checkpoint.resume: "
                                   "never"
                                 : "")
              : fmt::format(
                    "SIGTERM: ended after step {}, which could not be saved in "
                    "{}, tried twice; the same command goes on from the "
                    "checkpoint before",
                    step,
                    store_.path().string()));
  }

  Trainer trainer_;
  const Recipe& recipe_;
  std::unique_ptr<RunOutputs> outputs_;
  RunStore store_;
  /// What was there before; the same command would do so again.
  bool starts_over_;
  StepTracer tracer_;
};

} // namespace

void run_training(const Recipe& recipe, const mesh::World& world, bool fresh) {
  const auto steps = checkpoint::list_steps(checkpoints_path(recipe));
  const bool begins =
      fresh || steps.empty() || recipe.checkpoint.resume == "never";
  if (begins) {
    check_initial_weights(recipe);
  }
  // A run that has ended may have become that folder.
  if (begins || steps.front().step < recipe.train.steps) {
    check_export(recipe);
  }
  Run(recipe, world, fresh).run();
}

} // namespace weft::recipes
