#include "train/run_outputs.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "mesh/bootstrap/env.h"
#include "mesh/error/error.h"
#include "train/metrics/write_file.h"

namespace weft::train {
namespace {

std::string in_folder(const config::Recipe& recipe, const char* name) {
  return (std::filesystem::path(recipe.output_dir) / name).string();
}

base::LogLevel log_level() {
  return base::log_level_of(
             mesh::env::get(base::kLogLevelVariable).value_or(""))
      .value_or(base::LogLevel::kInfo);
}

// Writes recipe.yaml. If this fails, a resumed run keeps its file. Returns ""
// or the error.
std::string write_recipe(const config::Recipe& recipe) {
  try {
    write_file(in_folder(recipe, "recipe.yaml"), config::to_yaml(recipe));
    return "";
  } catch (const mesh::UsageError& error) {
    return fmt::format(
        "{}. Training continues", error.what_without_backtrace());
  }
}

} // namespace

RunOutputs::RunOutputs(const config::Recipe& recipe)
    : recipe_(recipe),
      progress_(
          stdout,
          {.total_steps = recipe.train.steps,
           .log_every = recipe.train.log_every,
           .is_terminal = ::isatty(STDOUT_FILENO) == 1}),
      log_(
          {.least = log_level(),
           .source = base::rank_source(0),
           .is_colored = ::isatty(STDOUT_FILENO) == 1,
           .write =
               [this](const std::string& line) { progress_.message(line); }}),
      report_(recipe.output_dir) {}

void RunOutputs::begin(
    const config::Recipe& resolved,
    const std::optional<RunStore::Resumed>& resumed,
    const torch::nn::Module& model,
    const mesh::DeviceMesh& mesh) {
  const int64_t step = resumed ? resumed->state.step : 0;
  metrics_ = std::make_unique<MetricsLog>(metrics_path(recipe_), step);
  log_.warning(metrics_->notice());
  if (resumed && metrics_->last_step() + 1 == step) {
    log_.warning(
        // The earlier process was killed before it wrote this line.
        metrics_->write_line(resumed->layout.metrics_line));
  }
  log_.warning(write_recipe(resolved));
  quorums_.emplace(in_folder(recipe_, "quorum.jsonl"), /*is_new_run=*/!resumed);
  if (recipe_.log.tensorboard) {
    tensorboard_ = std::make_unique<TensorBoardLog>(
        in_folder(recipe_, "tensorboard"), step + 1, recipe_.mesh.world_size());
  }
  log_.warning(report_.write_layout(model, mesh));
  log_.info(
      resumed ? fmt::format(
                    "resumes from {}: step {}, {} samples and {} tokens "
                    "done{}",
                    resumed->folder.string(),
                    step,
                    resumed->state.next_sample,
                    resumed->state.tokens,
                    resumed->layout.mesh == mesh.to_string()
                        ? ""
                        : fmt::format(" on {}", resumed->layout.mesh))
              : "starts from step 0");
}

void RunOutputs::take_over(
    int64_t step,
    const std::map<int64_t, std::string>& lines,
    const std::vector<QuorumEntry>& quorums) {
  metrics_ = std::make_unique<MetricsLog>(metrics_path(recipe_), step);
  const int64_t last = metrics_->last_step();
  for (const auto& [number, line] : lines) {
    if (number > last && number <= step) {
      log_.warning(metrics_->write_line(line));
    }
  }
  quorums_.emplace(in_folder(recipe_, "quorum.jsonl"), /*is_new_run=*/false);
  log_.warning(quorums_->write(quorums));
  if (recipe_.log.tensorboard) {
    tensorboard_ = std::make_unique<TensorBoardLog>(
        in_folder(recipe_, "tensorboard"), step + 1, recipe_.mesh.world_size());
  }
}

void RunOutputs::give_up() {
  metrics_.reset();
  tensorboard_.reset();
  quorums_.reset();
}

void RunOutputs::quorum_changed(const QuorumEntry& entry) {
  log_.warning(quorums_->write({entry}));
}

void RunOutputs::replace_line(int64_t step, const std::string& line) {
  metrics_ = std::make_unique<MetricsLog>(metrics_path(recipe_), step - 1);
  log_.warning(metrics_->write_line(line));
}

void RunOutputs::step_done(const StepMetrics& metrics) {
  log_.warning(metrics_->write(metrics));
  if (tensorboard_) {
    log_.warning(tensorboard_->write(metrics));
  }
  progress_.step_done(metrics);
  if (metrics.eval_loss) {
    progress_.eval_done(metrics);
    refresh_report(/*is_last=*/false);
  }
}

void RunOutputs::end() {
  if (!metrics_) { // another replica group writes the files
    return;
  }
  log_.warning(metrics_->finish());
  if (tensorboard_) {
    log_.warning(tensorboard_->finish());
  }
  refresh_report(/*is_last=*/true);
}

void RunOutputs::refresh_report(bool is_last) {
  log_.warning(report_.refresh(is_last));
}

} // namespace weft::train
