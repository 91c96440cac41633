#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/ops/full.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "checkpoint/files/error.h"
#include "elastic/manager.h"
#include "hf/config_json.h"
#include "hf/export_model.h"
#include "mesh/bootstrap/env.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "train/health/integrity_checker.h"
#include "train/health/straggler.h"
#include "train/run_context.h"
#include "train/run_outputs.h"
#include "train/setup/initial_weights.h"
#include "train/setup/products.h"
#include "train/stop_signal.h"
#include "train/store/link_costs.h"
#include "train/store/run_store.h"
#include "train/trace/step_tracer.h"
#include "train/trainer.h"

namespace weft::train {
namespace {

using Clock = std::chrono::steady_clock;

bool is_due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

// Returns the recipe as a checkpoint stores it, with an absolute model.from.
std::string stored_text(config::Recipe recipe) {
  if (!recipe.model.from.empty()) {
    recipe.model.from = hf::portable_path(recipe.model.from);
  }
  return config::to_yaml(recipe);
}

bool is_first_life() {
  return mesh::env::get("TORCHELASTIC_RESTART_COUNT").value_or("0") == "0";
}

// Returns true if a replica group has begun to write the folder since weftrun
// started.
bool is_folder_begun(const config::Recipe& recipe) {
  const auto launched = mesh::env::get("WEFT_LAUNCH_T0");
  std::error_code error;
  const auto written = std::filesystem::last_write_time(
      std::filesystem::path(recipe.output_dir) / "recipe.yaml", error);
  const auto age = std::filesystem::file_time_type::clock::now() - written;
  const auto since = std::chrono::system_clock::now().time_since_epoch() -
                     std::chrono::duration<double>(
                         std::strtod(launched.value_or("0").c_str(), nullptr));
  return !error && age < since;
}

// Returns true if this process writes the folder from the start. In an elastic
// run the first replica group does, in its first life or if no group has begun
// the folder.
bool begins_folder(const config::Recipe& recipe) {
  return !recipe.elastic.is_on() ||
         (mesh::env::get("REPLICA_GROUP_ID") == "0" &&
          (is_first_life() || !is_folder_begun(recipe)));
}

class Run {
 public:
  Run(const config::Recipe& recipe,
      const mesh::World& world,
      bool fresh,
      std::optional<data::BatchLoader> data)
      : world_(world),
        requested_(recipe),
        leads_(begins_folder(recipe)),
        starts_over_(
            fresh || recipe.checkpoint.resume == config::Resume::kNever),
        outputs_(
            world.rank() == 0 ? std::make_unique<RunOutputs>(requested_)
                              : nullptr),
        log_(leader_log()),
        context_(open_run(
            requested_,
            world,
            {.starts_over = starts_over_,
             .owns_folder = leads_,
             .data = std::move(data),
             .log = log_})),
        store_(*context_.store),
        trainer_(std::move(context_.inputs), world),
        recipe_(trainer_.recipe()),
        tracer_(
            recipe_.trace,
            recipe_.output_dir,
            world,
            trainer_.job().mesh,
            *trainer_.job().model),
        integrity_checker_(recipe_, trainer_.job(), log_),
        stragglers_(recipe_, trainer_.job().mesh, log_) {}

  void run() {
    log_.info(trainer_.describe());
    log_.info(products_text(recipe_));
    log_.info(links_text(recipe_));
    const int64_t first = resume();
    if (first >= recipe_.train.steps) {
      log_.info(fmt::format(
          "finished already, at step {}: see {}. A larger train.steps "
          "continues it, --fresh starts over",
          first,
          recipe_.output_dir));
      if (!std::filesystem::exists(recipe_.checkpoint.export_to)) {
        export_at(first);
      }
      return;
    }
    check_export(recipe_);
    train_from(first);
    log_.info(tracer_.finish());
    if (!recipe_.elastic.is_on()) {
      export_at(recipe_.train.steps);
    }
    log_.info(fmt::format(
        "done: {} steps, see {}", recipe_.train.steps, recipe_.output_dir));
  }

 private:
  void train_from(int64_t first) {
    // Completes the report even if the run ends with an exception.
    const auto end = c10::make_scope_exit([this] {
      if (outputs_) {
        outputs_->end();
      }
    });
    trainer_.set_tracer(&tracer_);
    trainer_.set_integrity_checker(&integrity_checker_);
    trainer_.set_phase_clock(stragglers_.clock());
    if (auto& average = trainer_.job().average) {
      average->begin();
    }
    if (recipe_.checkpoint.every > 0) {
      store_.saver().prepare(state_dicts(trainer_.job()));
    }
    run_steps(first);
  }

  // Returns the log of the run. Only rank 0 of the group that writes the folder
  // prints it.
  base::Logger leader_log() {
    return outputs_ ? outputs_->log().only_if([this] { return leads_; })
                    : base::Logger();
  }

  // Returns true if this group ignores the checkpoints, which may belong to the
  // previous run. It gets the state from the group that writes the folder.
  bool skips_checkpoints() const {
    return !leads_ && starts_over_ &&
           (is_first_life() || !is_folder_begun(recipe_));
  }

  /// Returns the index of the first step to train, from 0.
  int64_t resume() {
    auto& job = trainer_.job();
    auto dicts = state_dicts(job);
    dicts.erase(kCommHookPart);
    const auto found =
        skips_checkpoints()
            ? std::nullopt
            : store_.resume(dicts, [&](const auto& manifest, const auto&) {
                return optional_state_dicts(job, manifest);
              });
    if (found) {
      adopt_state(job, dicts, recipe_);
      adopt_hook_state(found->more, found->layout.mesh);
      check_average(found->more);
      compare_products(found->layout.products);
      trainer_.start_from(found->state);
      if (job.ddp && !recipe_.elastic.is_on() &&
          found->layout.mesh == job.mesh.to_string() &&
          !found->layout.buckets.empty()) {
        job.ddp->set_bucket_layout(found->layout.buckets.at(
            static_cast<size_t>(job.mesh.coordinate("tp"))));
      }
    }
    if (outputs_ && leads_) {
      outputs_->begin(recipe_, found, *job.model, job.mesh);
    }
    if (!found && has_initial_weights(recipe_)) {
      log_.info(load_initial_weights(recipe_, job));
    }
    if (leads_ && found && lacks_evaluation(found->layout.metrics_line)) {
      catch_up(found->state.step, found->layout.metrics_line);
    }
    return found ? found->state.step : 0;
  }

  // Runs the evaluation that the previous process had no time for, and adds it
  // to the line of its step.
  void catch_up(int64_t step, const std::string& line) {
    StepMetrics metrics{.step = step};
    evaluate_if_due(metrics);
    if (outputs_ && metrics.eval_loss) {
      log_.info(fmt::format(
          "step {}  eval_loss {:.4f} (interrupted)", step, *metrics.eval_loss));
      outputs_->replace_line(
          step,
          with_evaluation(line, *metrics.eval_loss, metrics.ema_eval_loss));
    }
  }

  void adopt_hook_state(
      const checkpoint::StateDicts& loaded,
      const std::string& saved_on_mesh) {
    auto& job = trainer_.job();
    const auto part = loaded.find(kCommHookPart);
    if (part == loaded.end()) {
      if (config::is_power_sgd(recipe_.ddp.comm_hook)) {
        log_.warning(
            "the comm hook starts anew: the checkpoint has no state of it");
      }
      return;
    }
    try {
      job.ddp->load_comm_hook_state_dict(part->second);
    } catch (const c10::ValueError& error) {
      if (saved_on_mesh == job.mesh.to_string()) {
        throw;
      }
      log_.warning(fmt::format(
          "the state of the comm hook was not loaded, and it starts from "
          "scratch: {}",
          error.what_without_backtrace()));
    }
  }

  void compare_products(config::Products earlier) {
    if (earlier != recipe_.products) {
      log_.warning(fmt::format(
          "products: {} was used before this checkpoint and {} is used from "
          "now on: results differ in their last bits from those of an "
          "uninterrupted run",
          earlier,
          recipe_.products));
    }
  }

  void check_average(const checkpoint::StateDicts& loaded) {
    if (trainer_.job().average && !loaded.contains(kAveragePart)) {
      trainer_.job().average->forget();
      log_.warning(
          "ema: the checkpoint has no average; it begins at the weights");
    }
  }

  // Exports on rank 0. The other ranks have nothing left to do.
  void export_at(int64_t step) {
    const auto& folder = recipe_.checkpoint.export_to;
    if (!outputs_ || !leads_ || folder.empty()) {
      return;
    }
    set_run_phase(RunPhase::kSaved);
    const auto done =
        hf::export_model(checkpoint::step_path(store_.path(), step), folder);
    for (const auto& note : done.notes) {
      log_.info(note);
    }
    log_.info(fmt::format("exported {}: {}", folder, hf::describe(done)));
  }

  void run_steps(int64_t first) {
    // Waits until all ranks are ready to train. Before kTraining, a stop signal
    // ends a rank at once, and no other rank may be saving then.
    trainer_.all_reduce_stop_request();
    set_run_phase(RunPhase::kTraining);
    trainer_.set_stop_request(is_stop_requested);
    integrity_checker_.begin(trainer_.state_after(first));
    if (recipe_.elastic.is_on()) {
      trainer_.join_groups(
          first, [this](int64_t step) { save_before_end(step); });
    }
    for (int64_t step = first; step < recipe_.train.steps;) {
      step = run_step(step);
    }
    if (recipe_.elastic.is_on()) {
      end_together();
    }
  }

  // Calls `act`. If it throws because too few replica groups are left, but the
  // run was asked to stop meanwhile, throws PreemptedError, because nothing
  // failed.
  template <class Act>
  auto with_enough_groups(const Act& act) {
    try {
      return act();
    } catch (const elastic::TooFewGroupsError&) {
      if (!says_rank_0(world_, is_stop_requested(), "stop")) {
        throw;
      }
    }
    mesh::throw_error<PreemptedError>(
        stop_requester() +
        ": ended because too few replica groups are there to train");
  }

  // Returns the number of completed steps.
  int64_t run_step(int64_t step) {
    tracer_.begin_step(step + 1);
    store_.saver().poll();
    auto metrics =
        with_enough_groups([&] { return trainer_.train_step(step); });
    if (trainer_.is_over()) {
      return metrics.step;
    }
    follow_leader(metrics.step - 1);
    if (trainer_.has_left()) {
      throw_left(metrics.step);
    }
    note_quorum();
    log_.warning(trainer_.skip_note());
    const bool is_last = metrics.step == recipe_.train.steps;
    // In an elastic run, end_together() does the work that follows the last
    // step.
    const bool is_done_later = is_last && recipe_.elastic.is_on();
    const bool is_whole = is_done_later || evaluate_if_due(metrics);
    // A stop signal in the last step is no preemption if the step is complete.
    bool stops = trainer_.should_stop() && !(is_last && is_whole);
    const bool saves =
        leads_ && !is_done_later &&
        (is_last || stops || is_due(metrics.step, recipe_.checkpoint.every));
    if (saves || integrity_checker_.is_due(metrics.step)) {
      integrity_checker_.check(trainer_.state_after(metrics.step));
    }
    bool saved = false;
    if (saves && can_save()) {
      const auto span = tracer_.span("checkpoint");
      const PhaseClock::Span time(stragglers_.clock(), "checkpoint");
      saved = save(metrics, is_last || stops);
      stops = stops || (trainer_.should_stop() && !is_last);
    }
    if (is_last && !saved && !is_done_later) {
      throw_last_not_saved(metrics.step);
    }
    const auto note = tracer_.end_step(metrics.step);
    if (is_done_later) {
      last_metrics_ = metrics;
    } else {
      write(metrics);
    }
    newest_metrics_ = metrics;
    log_.info(note);
    stragglers_.step_done();
    if (stops) {
      throw_preempted(metrics.step, saved);
    }
    return metrics.step;
  }

  void write(const StepMetrics& metrics) {
    if (outputs_ && leads_) {
      outputs_->step_done(metrics);
    }
    if (recipe_.elastic.is_on()) {
      constexpr size_t kKept = 64;
      auto kept = metrics;
      kept.eval_interrupted =
          kept.eval_interrupted || (!leads_ && is_evaluated(metrics.step));
      recent_lines_[metrics.step] = metrics_line(kept);
      if (recent_lines_.size() > kKept) {
        recent_lines_.erase(recent_lines_.begin());
      }
    }
  }

  bool is_evaluated(int64_t step) const {
    return recipe_.eval.batches > 0 &&
           (step == recipe_.train.steps || is_due(step, recipe_.eval.every));
  }

  // ---- elastic: which group writes the folder --------------------------

  // Follows a change of the leading group. `step` is the last one that another
  // group may have written.
  void follow_leader(int64_t step) {
    const bool led = std::exchange(leads_, trainer_.leads());
    if (leads_ && !led && outputs_) {
      outputs_->take_over(step, recent_lines_, recent_quorums_);
    }
    if (leads_ && !store_.owns()) {
      store_.take_over(); // can_save() retries and reports an error
    }
    if (led && !leads_) {
      if (outputs_) {
        outputs_->give_up();
      }
      if (store_.owns()) {
        store_.give_up();
      }
    }
  }

  void note_quorum() {
    const auto quorum = trainer_.take_quorum();
    if (!quorum) {
      return;
    }
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    QuorumEntry entry{
        .quorum = *quorum, .time = std::chrono::duration<double>(now).count()};
    ++entry.quorum.step; // counted from 1, as in metrics.jsonl
    if (outputs_ && leads_) {
      outputs_->quorum_changed(entry);
    }
    constexpr size_t kKept = 16;
    recent_quorums_.push_back(entry);
    if (recent_quorums_.size() > kKept) {
      recent_quorums_.erase(recent_quorums_.begin());
    }
  }

  // Returns true if this group owns the folder. Otherwise tries to take it
  // over: a group that is stopped or being killed may still own it.
  bool can_save() {
    if (!store_.owns()) {
      log_.warning(store_.take_over());
    }
    return store_.owns();
  }

  // Returns true if the step is saved, possibly by a group that was lost before
  // the other groups knew of the save. Collective: all ranks; blocks.
  bool is_saved(int64_t step) const {
    const bool is_there =
        world_.rank() == 0 &&
        std::ranges::any_of(
            checkpoint::list_steps(store_.path()),
            [&](const auto& folder) { return folder.step == step; });
    return says_rank_0(world_, is_there, "last step");
  }

  // Does the work that follows the last step. If the group that does it is
  // lost, another one repeats it.
  void end_together() {
    with_enough_groups([&] {
      trainer_.run_together([&] {
        follow_leader(recipe_.train.steps - 1);
        if (leads_) {
          end_as_leader();
        }
      });
    });
  }

  // Evaluates, saves and exports. Does this once, even if it is called again
  // because another group was lost.
  void end_as_leader() {
    if (is_ended_) {
      return;
    }
    const int64_t last = recipe_.train.steps;
    const bool has_done_it = last_metrics_.step == last;
    last_metrics_.step = last;
    evaluate_if_due(last_metrics_);
    wait_for_folder(last);
    if (!is_saved(last) && !save(last_metrics_, true)) {
      throw_last_not_saved(last);
    }
    if (has_done_it) {
      write(last_metrics_);
    }
    export_at(last);
    is_ended_ = true;
  }

  // Saves `step` before the run ends because there are too few groups. The
  // other groups wait for the save.
  void save_before_end(int64_t step) {
    follow_leader(step);
    if (step >= recipe_.train.steps) {
      end_as_leader();
      return;
    }
    wait_for_folder(step);
    store_.saver().finish();
    newest_metrics_.step = step;
    if (!is_saved(step) && !save(newest_metrics_, true)) {
      throw_last_not_saved(step);
    }
    if (says_rank_0(world_, is_stop_requested(), "stop")) {
      throw_preempted(step, true);
    }
  }

  // Waits until this group owns the folder. A stopped group may own it until
  // weftrun ends that group.
  void wait_for_folder(int64_t step) {
    constexpr int kTries = 60;
    for (int i = 0; !store_.owns(); ++i) {
      const auto problem = store_.take_over();
      if (problem.empty()) {
        return;
      }
      if (i == kTries) {
        mesh::throw_error<checkpoint::CheckpointError>(
            fmt::format("step {} could not be saved: {}", step, problem));
      }
      log_.warning(i == 0 ? problem : "");
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }

  // Returns false if the evaluation is left out, or cut short, because the run
  // is to stop.
  bool evaluate_if_due(StepMetrics& metrics) {
    if (!leads_ || !is_evaluated(metrics.step)) {
      return true;
    }
    metrics.eval_interrupted = true; // until it is complete
    if (trainer_.should_stop()) {
      return false;
    }
    const auto span = tracer_.span("eval");
    const PhaseClock::Span time(stragglers_.clock(), "eval");
    const auto loss = trainer_.evaluate();
    const auto average =
        loss && recipe_.ema.eval ? trainer_.evaluate_average() : std::nullopt;
    if (!loss || (recipe_.ema.eval && !average)) {
      return false;
    }
    metrics.eval_interrupted = false;
    metrics.eval_loss = loss;
    metrics.ema_eval_loss = average;
    return true;
  }

  // Returns true if the step is saved. A save in the background counts as not
  // saved. `waits` is true if the process will end.
  bool save(StepMetrics& metrics, bool waits) {
    const auto start = Clock::now();
    trainer_.check_weights(metrics.step);
    auto& job = trainer_.job();
    const RunLayout layout{
        .mesh = job.mesh.to_string(),
        // Another run cannot use the buckets of a replica group.
        .buckets = job.ddp && !recipe_.elastic.is_on()
                       ? gather_bucket_names(
                             job.mesh.group("tp"), job.ddp->bucket_names())
                       : std::vector<BucketNames>(),
        .products = recipe_.products,
        .cost_model = recipe_.cost_model,
        .links = recipe_.links,
        .recipe = stored_text(recipe_),
        .metrics_line = metrics_line(metrics)};
    const auto content =
        store_.content(trainer_.state_after(metrics.step), layout);
    const auto dicts = state_dicts(job);
    auto& saver = store_.saver();
    bool saved =
        waits ? saver.save_now(dicts, content) : saver.save(dicts, content);
    // If the run was asked to stop during the save, this step must be saved,
    // because no other one follows.
    if (!waits && trainer_.all_reduce_stop_request()) {
      saved = saved || saver.finish() || saver.save_now(dicts, content);
    }
    metrics.checkpoint_ms =
        std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    return saved;
  }

  [[noreturn]] void throw_last_not_saved(int64_t step) const {
    mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
        "the last step, {}, could not be saved in {} after two attempts. Free "
        "disk space there and run the same command again: it resumes from the "
        "previous checkpoint.",
        step,
        store_.path().string()));
  }

  [[noreturn]] void throw_left(int64_t step) const {
    mesh::throw_error<PreemptedError>(fmt::format(
        "{}: this replica group leaves after step {}, and the others go on",
        stop_requester(),
        step));
  }

  // Returns e.g. "SIGTERM" or "SIGTERM on rank 3". Collective: all ranks;
  // blocks.
  std::string stop_requester() const {
    auto group = world_.group();
    const auto names = mesh::all_gather_text(
        group, stop_signal_name(), "who asks the run to stop");
    const auto first = std::ranges::find_if(
        names, [](const auto& name) { return !name.empty(); });
    if (first == names.end() || std::ranges::count(names, *first) > 1) {
      return first == names.end() ? "asked to stop" : *first;
    }
    return names.size() == 1
               ? *first
               : fmt::format("{} on rank {}", *first, first - names.begin());
  }

  [[noreturn]] void throw_preempted(int64_t step, bool saved) const {
    const auto who = stop_requester();
    if (!leads_) {
      mesh::throw_error<PreemptedError>(fmt::format(
          "{}: ended after step {}, which another replica group saves",
          who,
          step));
    }
    mesh::throw_error<PreemptedError>(
        saved ? fmt::format(
                    "{}: step {} is saved in {}, and the same command resumes "
                    "from it{}",
                    who,
                    step,
                    store_.path().string(),
                    starts_over_ ? ", without --fresh or checkpoint.resume: "
                                   "never"
                                 : "")
              : fmt::format(
                    "{}: ended after step {}, which could not be saved in {}, "
                    "tried twice; the same command resumes from the previous "
                    "checkpoint",
                    who,
                    step,
                    store_.path().string()));
  }

  mesh::World world_;
  /// The validated recipe, whose open choices this run makes.
  config::Recipe requested_;
  /// True if this group writes the folder and shows progress. It can be false
  /// in elastic runs only.
  bool leads_;
  /// True if the run discards the checkpoints of an earlier one. The same
  /// command would discard them again.
  bool starts_over_;
  std::unique_ptr<RunOutputs> outputs_;
  base::Logger log_;
  /// Declared before trainer_, because the folder is locked before a model is
  /// built. Its inputs are moved into trainer_.
  RunContext context_;
  RunStore& store_;
  Trainer trainer_;
  /// The recipe with all choices of this run.
  const config::Recipe& recipe_;
  StepTracer tracer_;
  IntegrityChecker integrity_checker_;
  StragglerMonitor stragglers_;

  // In an elastic run, the data that this group writes if it becomes the
  // leader.
  StepMetrics newest_metrics_;
  StepMetrics last_metrics_;
  bool is_ended_ = false;
  std::map<int64_t, std::string> recent_lines_;
  std::vector<QuorumEntry> recent_quorums_;
};

} // namespace

void run_training(
    const config::Recipe& recipe,
    const mesh::World& world,
    bool fresh,
    std::optional<data::BatchLoader> data) {
  Run(recipe, world, fresh, std::move(data)).run();
}

} // namespace weft::train
