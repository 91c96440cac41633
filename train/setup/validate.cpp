#include "train/setup/validate.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "config/schema.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

struct OpenDim {
  std::string_view key;
  int64_t* size;
};

// Sets `open`, which is -1, to the world size divided by `other`.
void fill_rest(
    const config::Recipe& recipe,
    std::string_view key,
    int64_t& open,
    std::string_view others,
    int64_t other,
    int64_t world_size) {
  if (world_size % other != 0) {
    config::refuse(
        recipe,
        key,
        fmt::format(
            "-1 cannot be resolved: the world size {} is not divisible by {}",
            world_size,
            others));
  }
  open = world_size / other;
}

void resolve_mesh(config::Recipe& recipe, int64_t world_size) {
  auto& mesh = recipe.mesh;
  if (mesh.dp_shard == -1 && mesh.dp == -1) {
    mesh.dp = 1; // shards over as many ranks as possible
  }
  std::vector<OpenDim> open;
  int64_t others = 1;
  std::string text;
  for (auto [key, size] :
       {OpenDim{"mesh.dp", &mesh.dp},
        OpenDim{"mesh.dp_shard", &mesh.dp_shard},
        OpenDim{"mesh.tp", &mesh.tp}}) {
    if (*size == -1) {
      open.push_back({key, size});
    } else if (*size > 1 || key != "mesh.dp_shard") {
      others *= *size;
      text += fmt::format("{}{}={}", text.empty() ? "" : " x ", key, *size);
    }
  }
  if (open.size() > 1) {
    config::refuse(
        recipe,
        open.back().key,
        fmt::format(
            "{} and {} are both -1; set one of them",
            open.front().key,
            open.back().key));
  }
  if (!open.empty()) {
    fill_rest(
        recipe, open.front().key, *open.front().size, text, others, world_size);
  }
  if (mesh.world_size() != world_size) {
    config::refuse(
        recipe,
        "mesh.dp",
        fmt::format(
            "the mesh dp={} x {}tp={} needs {} ranks, but the world size is "
            "{}. Start {} ranks (weftrun --nproc-per-node {}), or set "
            "mesh.dp=-1",
            mesh.dp,
            mesh.is_sharded() ? fmt::format("dp_shard={} x ", mesh.dp_shard)
                              : "",
            mesh.tp,
            mesh.world_size(),
            world_size,
            mesh.world_size(),
            mesh.world_size()));
  }
}

void check_reshard_to(const config::Recipe& recipe) {
  const auto size = recipe.fsdp.reshard_to;
  if (size == 0) {
    return;
  }
  constexpr const char* kKey = "fsdp.reshard_to";
  const auto shards = recipe.mesh.dp_shard;
  if (size >= shards || shards % size != 0) {
    config::refuse(
        recipe,
        kKey,
        fmt::format(
            "{} must be a divisor of mesh.dp_shard={} and smaller than it. To "
            "keep all unsharded parameters, set "
            "fsdp.reshard_after_forward=never",
            size,
            shards));
  }
}

// Refuses a value that the user set and that has no effect.
void check_effects(const config::Recipe& recipe) {
  if (const auto* key = config::find_ineffective_key(recipe)) {
    config::refuse(
        recipe,
        key->path,
        fmt::format(
            "{} has no effect: {}. Leave it out, or change that",
            config::value_of(recipe, key->path),
            config::why_without_effect(*key, recipe)));
  }
}

void check_link(
    const config::Recipe& recipe,
    std::string_view mesh_dim,
    double latency_us,
    double bandwidth_gb_s) {
  if ((latency_us > 0) == (bandwidth_gb_s > 0)) {
    return;
  }
  const bool lacks_bandwidth = latency_us > 0;
  config::refuse(
      recipe,
      fmt::format(
          "links.{}_{}",
          mesh_dim,
          lacks_bandwidth ? "latency_us" : "bandwidth_gb_s"),
      fmt::format(
          "{} is set, but links.{}_{} is not. Set both, or leave both to "
          "cost_model",
          lacks_bandwidth ? latency_us : bandwidth_gb_s,
          mesh_dim,
          lacks_bandwidth ? "bandwidth_gb_s" : "latency_us"));
}

// Returns the multiples of `unit` around `value`, such as "12 or 18".
std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit)
                    : fmt::format("{} or {}", below, below + unit);
}

BatchParts parts_of(const config::MeshConfig& mesh) {
  return {
      .key = !mesh.is_sharded() ? "mesh.dp"
             : mesh.dp == 1     ? "mesh.dp_shard"
                                : "mesh.dp x mesh.dp_shard",
      .count = mesh.batch_ranks()};
}

void resolve_batch(config::Recipe& recipe, const BatchParts& parts) {
  config::TrainConfig& train = recipe.train;
  const int64_t global = train.global_batch_size;
  if (train.micro_batch_size == 0 && global % parts.count == 0) {
    train.micro_batch_size = global / parts.count;
  }
  const auto unit = batch_unit(train, parts.count);
  if (global % unit.samples != 0) {
    config::refuse(
        recipe,
        "train.global_batch_size",
        fmt::format(
            "{} is not divisible by {}={}{}. The nearest valid value is {}",
            global,
            parts.key,
            parts.count,
            unit.factor,
            nearest_multiples(global, unit.samples)));
  }
}

void check_recomputed(const config::Recipe& recipe) {
  const config::TrainConfig& train = recipe.train;
  const bool named = !train.activation_checkpoint_modules.empty();
  if (named != (train.activation_checkpoint ==
                config::ActivationCheckpoint::kSelective)) {
    config::refuse(
        recipe,
        named ? "train.activation_checkpoint_modules"
              : "train.activation_checkpoint",
        named ? fmt::format(
                    "requires train.activation_checkpoint=selective, but that "
                    "key is {}",
                    train.activation_checkpoint)
              : "selective needs train.activation_checkpoint_modules, such as "
                "[\"model.layers.*.mlp\"]");
  }
}

void check_adapters(const config::Recipe& recipe) {
  if (recipe.lora.rank > 0 && recipe.lora.target_modules.empty()) {
    config::refuse(
        recipe,
        "lora.rank",
        fmt::format(
            "got {} without lora.target_modules. Set lora.target_modules to "
            "the Linear layers that get an adapter, such as "
            "[\"model.layers.*.self_attn.*\"]",
            recipe.lora.rank));
  }
  if (recipe.lora.rank == 0 && !recipe.lora.target_modules.empty()) {
    config::refuse(
        recipe,
        "lora.target_modules",
        "requires lora.rank, without which all weights would be trained. Set "
        "lora.rank, or remove lora.target_modules");
  }
}

void check_origin(const config::Recipe& recipe) {
  if (!recipe.model.from.empty() && !recipe.checkpoint.init_from.empty()) {
    config::refuse(
        recipe,
        "checkpoint.init_from",
        fmt::format(
            "cannot be combined with model.from={}, which also sets the "
            "initial weights. Remove one of them",
            recipe.model.from));
  }
}

void check_init_rules(const config::Recipe& recipe) {
  try {
    const checkpoint::Renaming rename(init_rename_rules(recipe));
  } catch (const mesh::UsageError&) {
    throw;
  } catch (const c10::ValueError& error) {
    config::refuse(
        recipe, "checkpoint.init_rename", error.what_without_backtrace());
  }
}

void check_trace(const config::Recipe& recipe) {
  if (recipe.trace.steps > 0 && recipe.trace.first_step > recipe.train.steps) {
    config::refuse(
        recipe,
        "trace.first_step",
        fmt::format(
            "{} is after the last step, train.steps={}",
            recipe.trace.first_step,
            recipe.train.steps));
  }
}

// Refuses options that would end a run with on_non_finite=skip, or keep it from
// recovering after a skipped step.
void check_non_finite(const config::Recipe& recipe) {
  if (recipe.train.on_non_finite != config::OnNonFinite::kSkip) {
    return;
  }
  constexpr const char* kKey = "train.on_non_finite";
  if (recipe.ddp.check_for_nan_in_grad) {
    config::refuse(
        recipe,
        kKey,
        "skip continues the run after NaN, but ddp.check_for_nan_in_grad ends "
        "it; use only one of them");
  }
  if (is_power_sgd(recipe.ddp.comm_hook)) {
    config::refuse(
        recipe,
        kKey,
        fmt::format(
            "skip cannot be combined with ddp.comm_hook={}, whose error "
            "feedback would add the NaN to the next step's gradients. Use stop",
            recipe.ddp.comm_hook));
  }
}

} // namespace

void validate(
    config::Recipe& recipe,
    int64_t world_size,
    const std::optional<BatchParts>& parts) {
  resolve_mesh(recipe, world_size);
  resolve_model(recipe);
  check_effects(recipe);
  check_reshard_to(recipe);
  const auto& links = recipe.links;
  check_link(recipe, "dp", links.dp_latency_us, links.dp_bandwidth_gb_s);
  check_link(recipe, "tp", links.tp_latency_us, links.tp_bandwidth_gb_s);
  resolve_batch(recipe, parts.value_or(parts_of(recipe.mesh)));
  check_recomputed(recipe);
  check_adapters(recipe);
  check_origin(recipe);
  check_init_rules(recipe);
  check_trace(recipe);
  check_non_finite(recipe);
  if (recipe.output_dir.empty()) {
    recipe.output_dir = "outputs/" + recipe.name;
  }
}

std::vector<checkpoint::RenameRule> init_rename_rules(
    const config::Recipe& recipe) {
  constexpr std::string_view kArrow = " -> ";
  std::vector<checkpoint::RenameRule> rules;
  for (auto rule : recipe.checkpoint.init_rename) {
    if (rule.ends_with(" ->")) { // YAML removes the last space
      rule += ' ';
    }
    const auto arrow = rule.find(kArrow);
    if (arrow == std::string::npos || arrow == 0) {
      config::refuse(
          recipe,
          "checkpoint.init_rename",
          fmt::format(
              "\"{}\" is not a rule; write \"pattern -> replacement\", such as "
              "\"^model\\.encoder\\. -> model.\"",
              rule));
    }
    rules.push_back(
        {rule.substr(0, arrow), rule.substr(arrow + kArrow.size())});
  }
  return rules;
}

BatchUnit batch_unit(const config::TrainConfig& train, int64_t parts) {
  if (train.micro_batch_size == 0) {
    return {.samples = parts, .factor = ""};
  }
  const int64_t samples = parts * train.micro_batch_size;
  return {
      .samples = samples,
      .factor = fmt::format(
          " x train.micro_batch_size={} = {}",
          train.micro_batch_size,
          samples)};
}

int64_t accumulation_steps(const config::Recipe& recipe) {
  return recipe.train.global_batch_size /
         (recipe.mesh.batch_ranks() * recipe.train.micro_batch_size);
}

} // namespace weft::train
