#include "inference/inference_model.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/string_streams.h"
#include "checkpoint/files/error.h"
#include "checkpoint/format/rounding.h"
#include "checkpoint/store/store.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"
#include "models/registry.h"
#include "train/setup/checkpoint_key.h"
#include "train/setup/ddp_config.h"
#include "train/setup/fully_sharded_model.h"
#include "train/setup/job_mesh.h"
#include "train/setup/products.h"
#include "train/setup/train_job.h"
#include "train/setup/validate.h"
#include "train/store/link_costs.h"
#include "train/store/run_store.h"

namespace weft::inference {
namespace {

namespace fs = std::filesystem;

// The most samples that a replica computes at once if the recipe does not set
// the number.
constexpr int64_t kMaxSamples = 8;

// Returns the checkpoints at `folder`, the newest first. The folder is a
// checkpoint, contains checkpoints, or is that of a run.
std::vector<fs::path> steps_in(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / checkpoint::kManifestName, ignored)) {
    return {folder};
  }
  std::vector<fs::path> found;
  for (const auto& place : {folder, folder / "checkpoints"}) {
    for (const auto& step : checkpoint::list_steps(place)) {
      found.push_back(step.path);
    }
  }
  return found;
}

fs::path place_of_weights(
    const config::Recipe& recipe,
    const std::string& checkpoint) {
  return checkpoint.empty() ? train::checkpoints_path(recipe)
                            : fs::path(checkpoint);
}

// Returns the checkpoints with the weights. Empty if the weights are those from
// which a new run starts.
std::vector<fs::path> find_weights(
    const config::Recipe& recipe,
    const std::string& checkpoint) {
  const auto place = place_of_weights(recipe, checkpoint);
  auto steps = steps_in(place);
  if (!steps.empty() ||
      (checkpoint.empty() && train::has_initial_weights(recipe))) {
    return steps;
  }
  mesh::throw_error<mesh::UsageError>(
      checkpoint.empty()
          ? fmt::format(
                "{} has no checkpoint: the recipe's run has not saved one. "
                "Train first, or give --checkpoint or model.from.",
                place.string())
          : fmt::format(
                "--checkpoint: \"{}\" has no checkpoint. Give a step folder, "
                "such as outputs/quickstart/checkpoints/step-200, or a run's "
                "folder.",
                checkpoint));
}

// Returns true if the key changes the function that the weights belong to, and
// not only training. `adapted` means that the weights have adapters.
bool affects_model(const std::string& key, bool adapted) {
  return (key.starts_with("model.") || (adapted && key.starts_with("lora."))) &&
         key != "model.from" && !key.ends_with("dropout") &&
         !key.starts_with("model.router_");
}

// Compares keys that change the meaning of tensors without changing their
// shapes, e.g. model.heads.
void check_same_model(
    const config::Recipe& recipe,
    const fs::path& step,
    const checkpoint::Manifest& manifest) {
  std::optional<train::RunLayout> layout;
  try {
    layout = train::parse_run_layout(manifest.layout, step.string());
  } catch (const checkpoint::CheckpointError&) {
    return; // An imported checkpoint has no recipe.
  }
  auto earlier = config::parse_stored_recipe(
      layout->recipe, step.string() + " (recipe)", recipe.origins.models);
  models::resolve_options(earlier);
  std::vector<std::string> differences;
  for (const auto& key : config::differing_keys(recipe, earlier)) {
    if (affects_model(key, earlier.lora.rank > 0)) {
      differences.push_back(fmt::format(
          "{} is {} there and {} here",
          key,
          config::value_of(earlier, key),
          config::value_of(recipe, key)));
    }
  }
  if (!differences.empty()) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} belongs to another model: {}. Give the recipe that it was trained "
        "with.",
        step.string(),
        fmt::join(differences, "; ")));
  }
}

// Returns the checkpoints that rank 0 finds.
std::vector<std::string> agreed_steps(
    const config::Recipe& recipe,
    const mesh::World& world,
    const std::string& checkpoint) {
  std::string own;
  if (world.rank() == 0) {
    for (const auto& step : steps_in(place_of_weights(recipe, checkpoint))) {
      own += step.string() + "\n";
    }
  }
  auto group = world.group();
  base::StringReader lines(
      mesh::all_gather_text(group, own, "checkpoints").front());
  std::vector<std::string> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(line);
  }
  return steps;
}

std::string load_newest(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    models::Model& model,
    const std::vector<std::string>& steps,
    train::WeightKind kind,
    const base::Logger& log) {
  for (const auto& step : steps) {
    try {
      return train::load_model_weights(recipe, model, mesh, step, kind);
    } catch (const checkpoint::CheckpointError& error) {
      if (steps.size() == 1) {
        throw;
      }
      if (mesh.world().rank() == 0) {
        log.warning(fmt::format(
            "cannot load {}: {}", step, error.what_without_backtrace()));
      }
    }
  }
  mesh::throw_error<checkpoint::CheckpointError>(fmt::format(
      "none of {} checkpoints can be loaded; the newest is {}. Run `weft "
      "checkpoint verify` to see the damage.",
      steps.size(),
      steps.front()));
}

// Casts the parameters once, as DDP does in each training step. An error is
// thrown on all ranks.
void cast_parameters(
    const config::Recipe& recipe,
    models::Model& model,
    const mesh::World& world) {
  const auto dtype = train::param_dtype(recipe);
  if (!dtype) {
    return;
  }
  const auto local_of = [](const at::Tensor& tensor) {
    return dtensor::is_dtensor(tensor) ? dtensor::to_local(tensor) : tensor;
  };
  std::string fault;
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    const auto cast = parameter.to(*dtype);
    const checkpoint::TensorPlace place{.name = item.key()};
    if (fault.empty() &&
        !checkpoint::describe_non_finite(local_of(cast), place).empty()) {
      try {
        checkpoint::round_to(local_of(parameter), *dtype, place);
      } catch (const c10::ValueError& error) {
        fault = error.what_without_backtrace();
      }
    }
    parameter.set_data(cast);
  }
  auto group = world.group();
  for (const auto& text :
       mesh::all_gather_text(group, fault, "weights", world.device())) {
    if (!text.empty()) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "{} Set train.dtype (or ddp.param_dtype) to float32.", text));
    }
  }
}

// Adapts the mesh of a recipe that shards the model to any number of ranks.
void choose_shards(config::Recipe& recipe, int64_t world_size) {
  auto& mesh = recipe.mesh;
  if (mesh.dp_shard != 1) {
    const int64_t rest = world_size / std::max<int64_t>(mesh.tp, 1);
    const bool keeps_size = mesh.dp_shard > 1 && rest % mesh.dp_shard == 0;
    mesh.dp_shard = keeps_size ? mesh.dp_shard : std::max<int64_t>(rest, 1);
    mesh.dp = -1;
    recipe.fsdp.comm_hook = config::FsdpCommHook::kNone;
    recipe.fsdp.reshard_to = 0; // There is no backward.
  }
  if (mesh.dp_shard == 1) {
    if (recipe.fsdp.param_dtype != config::ParamDtype::kNone) {
      recipe.ddp.param_dtype = recipe.fsdp.param_dtype;
    }
    recipe.fsdp = {};
  }
}

class ShardedModel : public models::Model {
 public:
  ShardedModel(
      std::shared_ptr<models::Model> model,
      std::unique_ptr<train::DataParallelModel> sharded)
      : model_(std::move(model)), sharded_(std::move(sharded)) {}

  at::Tensor forward(const at::Tensor& input) override {
    return sharded_->forward(input);
  }
  at::Tensor forward_cached(const at::Tensor& tokens, models::KvCache& cache)
      override {
    return sharded_->forward_cached(tokens, cache);
  }
  std::set<std::string> computed_buffers() const override {
    return model_->computed_buffers();
  }

 private:
  std::shared_ptr<models::Model> model_;
  std::unique_ptr<train::DataParallelModel> sharded_;
};

} // namespace

void validate_for_inference(config::Recipe& recipe, int64_t world_size) {
  choose_shards(recipe, world_size);
  if (recipe.mesh.tp == 1) {
    // The recipe may be trained with async_tp on more ranks.
    recipe.tp.async_tp = config::TpConfig().async_tp;
  }
  auto& train = recipe.train;
  const int64_t global = train.global_batch_size;
  if (train.micro_batch_size == 0) {
    train.micro_batch_size = std::clamp<int64_t>(global, 1, kMaxSamples);
  }
  // 0 is a multiple of every micro-batch size, so validate() accepts it. The
  // value is set when the mesh is known.
  train.global_batch_size = 0;
  train::validate(recipe, world_size);
  train.global_batch_size = recipe.mesh.batch_ranks() * train.micro_batch_size;
}

void check_weights(
    const config::Recipe& recipe,
    const std::string& checkpoint,
    train::WeightKind kind) {
  const auto hmac_key = train::read_hmac_key(recipe);
  const auto steps = find_weights(recipe, checkpoint);
  if (steps.empty() && kind == train::WeightKind::kEma) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "--weights: {} has no checkpoint with EMA weights. Train with "
        "ema.decay to save them",
        place_of_weights(recipe, checkpoint).string()));
  }
  if (steps.empty()) {
    train::check_initial_weights(recipe);
  }
  for (const auto& step : steps) {
    try {
      check_same_model(recipe, step, checkpoint::read_manifest(step, hmac_key));
      return;
    } catch (const checkpoint::CheckpointError&) {
      continue; // load_model() reports it.
    }
  }
}

mesh::DeviceMesh make_inference_mesh(
    const config::Recipe& recipe,
    const mesh::World& world) {
  world.check_agreement("recipe", config::to_yaml(recipe));
  auto mesh = train::make_job_mesh(recipe, world);
  auto resolved = recipe;
  train::resolve_link_costs(resolved, mesh);
  resolved.products = train::possible_products(recipe.products);
  train::resolve_products(resolved);
  return mesh;
}

std::shared_ptr<models::Model> load_model(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint,
    const base::Logger& log,
    train::WeightKind kind) {
  const auto& world = mesh.world();
  const at::NoGradGuard no_grad;
  auto model = train::place_model(recipe, mesh, world.device());
  std::unique_ptr<train::DataParallelModel> sharded;
  if (recipe.mesh.is_sharded()) {
    sharded = train::make_fully_sharded_model(recipe, model, mesh);
  }
  dtensor::materialize(
      *model, static_cast<uint64_t>(recipe.seed), world.device());
  const auto steps = agreed_steps(recipe, world, checkpoint);
  const auto line = steps.empty()
                        ? train::load_model_weights(recipe, *model, mesh)
                        : load_newest(recipe, mesh, *model, steps, kind, log);
  if (world.rank() == 0) {
    log.info(line);
  }
  for (auto& parameter : model->parameters()) {
    parameter.set_requires_grad(false);
  }
  model->eval();
  // A sharded model casts the parameters that it gathers.
  if (sharded) {
    return std::make_shared<ShardedModel>(model, std::move(sharded));
  }
  cast_parameters(recipe, *model, world);
  return model;
}

} // namespace weft::inference
