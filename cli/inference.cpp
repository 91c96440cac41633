#include "cli/inference.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "inference/inference_model.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/job_rank.h"
#include "mesh/device/device.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "models/registry.h"
#include "train/setup/threads.h"

namespace weft::cli {

void add_inference_arguments(
    const Program& program,
    CLI::App& command,
    InferenceArguments& arguments,
    const std::string& examples) {
  add_recipe_arguments(program, command, arguments, examples);
  command.add_option(
      "--checkpoint",
      arguments.checkpoint,
      "A step folder, or a run's folder for its newest checkpoint. Default: "
      "the checkpoint from which weft train would resume, or the initial "
      "weights of a new run (model.from, checkpoint.init_from)");
  command
      .add_option(
          "--weights",
          arguments.weights,
          "The model's weights, or their exponential moving average "
          "(ema.decay)")
      ->check(CLI::IsMember({"model", "ema"}))
      ->capture_default_str();
  command.add_flag(
      "--json",
      arguments.json,
      "Writes one line of JSON to stdout and everything else to stderr");
}

config::Recipe load_for_inference(
    const InferenceArguments& arguments,
    bool reads_data) {
  auto own = arguments;
  if (!reads_data) {
    own.overrides.emplace_back("data.paths=[none]");
  }
  auto recipe = own.load();
  const auto job = mesh::current_job_rank();
  if (const auto threads = train::threads_per_rank(job, mesh::env::get)) {
    at::set_num_threads(*threads);
  }
  // The vocabulary need not hold the bytes of a text if no data is read. So the
  // recipe is validated as if its data were tokens.
  const auto type = recipe.data.type;
  if (!reads_data &&
      models::model_input(recipe) == models::ModelInput::kTokens) {
    recipe.data.type = config::DataType::kTokens;
  }
  inference::validate_for_inference(recipe, job.world_size);
  recipe.data.type = type;
  return recipe;
}

mesh::DeviceMesh join_mesh(
    const config::Recipe& recipe,
    const std::string& field,
    const std::string& value) {
  mesh::WorldOptions options;
  options.timeout = std::chrono::seconds(recipe.comm.timeout_s);
  if (recipe.device == config::Device::kCuda) {
    const auto job = mesh::current_job_rank();
    mesh::open_device(
        to_string(recipe.device), job.local_rank, job.local_world_size);
    options.backend = "nccl";
  }
  const auto world = mesh::World::from_env(options);
  world.check_agreement(field, value);
  return inference::make_inference_mesh(recipe, world);
}

void write_to_stdout(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
      std::fflush(stdout) != 0) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("cannot write to stdout: {}", std::strerror(errno)));
  }
}

} // namespace weft::cli
