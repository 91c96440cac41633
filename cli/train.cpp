#include <chrono>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include "cli/program.h"
#include "data/batch_loader.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_rank.h"
#include "mesh/device/device.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "train/run.h"
#include "train/setup/job_mesh.h"
#include "train/setup/replica_groups.h"
#include "train/setup/threads.h"
#include "train/stop_signal.h"

namespace weft::cli {
namespace {

constexpr int64_t kMostGroups = 1'000'000;

struct TrainArguments : RecipeArguments {
  bool fresh = false;
};

// Returns the rank, or 0 if the variables are invalid. train() refuses them
// later.
int64_t rank_or_zero() {
  try {
    return mesh::read_job_rank(mesh::env::get).rank;
  } catch (const mesh::UsageError&) {
    return 0;
  }
}

void train(const TrainArguments& arguments) {
  train::handle_stop_signals(
      rank_or_zero(), mesh::env::get("TORCHELASTIC_ERROR_FILE").value_or(""));
  // All checks that one rank can make come before World::from_env(), in which
  // the ranks wait for each other.
  auto recipe = arguments.load();
  const auto job = mesh::current_job_rank();
  if (const auto threads = train::threads_per_rank(job, mesh::env::get)) {
    at::set_num_threads(*threads);
  }
  recipe = train::recipe_of_group(
      std::move(recipe),
      job.world_size,
      mesh::env::get_int("NUM_REPLICA_GROUPS", 1, kMostGroups));
  mesh::WorldOptions options;
  options.timeout = std::chrono::seconds(recipe.comm.timeout_s);
  if (!mesh::env::get("TORCH_FR_DUMP_TEMP_FILE")) {
    options.watch.flight_record = recipe.output_dir + "/flight/rank_";
  }
  if (recipe.device == config::Device::kCuda) {
    mesh::open_device(
        to_string(recipe.device), job.local_rank, job.local_world_size);
    options.backend = "nccl";
  }
  auto data =
      data::BatchLoader::open(recipe, train::batch_rank(recipe, job.rank));
  const auto world = mesh::World::from_env(options);
  train::run_training(recipe, world, arguments.fresh, std::move(data));
}

} // namespace

void add_train(Program& program) {
  auto arguments = std::make_shared<TrainArguments>();
  auto* command =
      program.add_subcommand("train", "Train the model of a recipe");
  add_recipe_arguments(
      program, *command, *arguments, "mesh.tp=4 train.steps=20");
  command->add_flag(
      "--fresh",
      arguments->fresh,
      "Starts over. One previous version of the run's checkpoints and metrics "
      "is kept as checkpoints.old and metrics.jsonl.old");
  command->callback([arguments] { train(*arguments); });
}

} // namespace weft::cli
