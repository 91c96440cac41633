#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include "mesh/device.h"
#include "mesh/env.h"
#include "mesh/job_rank.h"
#include "mesh/world.h"
#include "recipes/cli/commands.h"
#include "recipes/config/recipe.h"
#include "recipes/config/validate.h"
#include "recipes/data/batch_loader.h"
#include "recipes/train/run.h"
#include "recipes/train/run_store.h"
#include "recipes/train/threads.h"

namespace weft::recipes::cli {
namespace {

struct TrainArguments {
  std::string recipe;
  std::vector<std::string> overrides;
  bool fresh = false;
};

void train(const TrainArguments& arguments) {
  // Everything that can be wrong is looked at before any rank waits for
  // another.
  auto recipe = load_recipe(arguments.recipe, arguments.overrides);
  const auto job = mesh::own_job_rank();
  if (const auto threads = threads_per_rank(job, mesh::env::get)) {
    at::set_num_threads(*threads);
  }
  validate(recipe, job.world_size);
  mesh::WorldOptions options;
  options.timeout = std::chrono::seconds(recipe.comm.timeout_s);
  if (recipe.device == "cuda") {
    mesh::open_device(recipe.device, job.local_rank, job.local_world_size);
    options.backend = "nccl";
  }
  const auto loader = BatchLoader::open(recipe, 0);
  const bool fresh = arguments.fresh || recipe.checkpoint.resume == "never";
  if (!fresh) {
    check_run_fits(recipe, loader.data().fingerprint_text());
  }
  const auto world = mesh::World::from_env(options);
  run_training(recipe, world, fresh);
}

} // namespace

void add_train(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  auto* command = app.add_subcommand("train", "Train what a recipe describes");
  command->add_option("recipe", arguments->recipe, "The recipe, a YAML file")
      ->required();
  command->add_option(
      "overrides",
      arguments->overrides,
      "key.path=value, on top of the recipe, e.g. mesh.tp=4 train.steps=20");
  command->add_flag(
      "--fresh",
      arguments->fresh,
      "Start over; the run's checkpoints and metrics are kept, once, as "
      "checkpoints.old and metrics.jsonl.old");
  command->callback([arguments] { train(*arguments); });
}

} // namespace weft::recipes::cli
