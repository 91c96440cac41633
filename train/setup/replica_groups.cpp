#include "train/setup/replica_groups.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "mesh/error/error.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

void resolve_groups(
    config::Recipe& recipe,
    int64_t group_size,
    int64_t groups) {
  auto& mesh = recipe.mesh;
  if (mesh.dp_shard != 1) {
    config::refuse(
        recipe,
        "mesh.dp_shard",
        fmt::format(
            "{} cannot be combined with elastic.batch={}: each replica group "
            "has all parameters. Set mesh.dp_shard=1",
            mesh.dp_shard,
            recipe.elastic.batch));
  }
  mesh.tp = mesh.tp == -1 ? group_size : mesh.tp;
  if (mesh.tp != group_size) {
    config::refuse(
        recipe,
        "mesh.tp",
        fmt::format(
            "{} vs {} ranks of a replica group: a group is one replica. Start "
            "weftrun with --replica-size {}, or set mesh.tp=-1",
            mesh.tp,
            group_size,
            mesh.tp));
  }
  mesh.dp = mesh.dp == -1 ? groups : mesh.dp;
  if (mesh.dp != groups) {
    config::refuse(
        recipe,
        "mesh.dp",
        fmt::format(
            "{} vs {} replica groups. Start weftrun with --nproc-per-node {} "
            "--replica-size {}, or set mesh.dp=-1",
            mesh.dp,
            groups,
            mesh.dp * mesh.tp,
            mesh.tp));
  }
}

void resolve_lanes(config::Recipe& recipe) {
  int64_t& lanes = recipe.elastic.lanes;
  if (recipe.elastic.batch != config::ElasticBatch::kExact) {
    if (lanes != 0) {
      config::refuse(
          recipe,
          "elastic.lanes",
          fmt::format(
              "{} has no effect with elastic.batch={}. Set "
              "elastic.batch=exact, or leave it out",
              lanes,
              recipe.elastic.batch));
    }
    return;
  }
  lanes = lanes == 0 ? recipe.mesh.dp : lanes;
  if (lanes < recipe.mesh.dp) {
    config::refuse(
        recipe,
        "elastic.lanes",
        fmt::format(
            "{} vs {} replica groups, of which each computes a lane. Set "
            "elastic.lanes to at least {}",
            lanes,
            recipe.mesh.dp,
            recipe.mesh.dp));
  }
  const config::TrainConfig& train = recipe.train;
  const auto unit = batch_unit(train, lanes);
  if (lanes != recipe.mesh.dp && train.global_batch_size % unit.samples != 0) {
    config::refuse(
        recipe,
        "elastic.lanes",
        fmt::format(
            "{}{} does not divide train.global_batch_size={}, so that the "
            "lanes would differ in size",
            lanes,
            unit.factor,
            train.global_batch_size));
  }
}

// Refuses options that need the same replicas during the run, or files of all
// ranks.
void check_options(const config::Recipe& recipe) {
  const config::Recipe defaults;
  const auto refuse_set = [&](std::string_view key, std::string_view way_out) {
    if (config::value_of(recipe, key) != config::value_of(defaults, key)) {
      config::refuse(
          recipe,
          key,
          fmt::format(
              "{} cannot be combined with elastic.batch={}: replica groups "
              "come and go. {}",
              config::value_of(recipe, key),
              recipe.elastic.batch,
              way_out));
    }
  };
  refuse_set("device", "Replica groups are not supported on CUDA yet");
  refuse_set("ddp.comm_hook", "Set ddp.comm_hook=none");
  refuse_set("ddp.auto_bucketing", "Set ddp.bucket_cap_mb instead");
  refuse_set(
      "ddp.check_for_nan_in_grad",
      "Gradients that are not finite are found after backward: "
      "train.on_non_finite");
  refuse_set("trace.steps", "Set trace.steps=0");
  if (recipe.ddp.bucket_mode == config::BucketMode::kCoalesced) {
    refuse_set("ddp.bucket_mode", "Set ddp.bucket_mode=concatenated");
  }
}

} // namespace

config::Recipe recipe_of_group(
    config::Recipe recipe,
    int64_t group_size,
    std::optional<int64_t> groups) {
  if (!recipe.elastic.is_on()) {
    if (groups.value_or(1) > 1) {
      config::refuse(
          recipe,
          "elastic.batch",
          fmt::format(
              "none vs {} replica groups (weftrun --replica-size), which would "
              "all train the same run. Set elastic.batch=exact, or start "
              "weftrun without --replica-size",
              *groups));
    }
    for (const auto* key :
         {"elastic.lanes", "elastic.min_groups", "elastic.join_timeout_s"}) {
      if (config::value_of(recipe, key) !=
          config::value_of(config::Recipe(), key)) {
        config::refuse(
            recipe,
            key,
            "it has no effect without replica groups. Set elastic.batch=exact, "
            "or leave it out");
      }
    }
    validate(recipe, group_size);
    return recipe;
  }
  if (!groups) {
    config::refuse(
        recipe,
        "elastic.batch",
        fmt::format(
            "{} needs replica groups. Start the run with weftrun "
            "--replica-size N, where N is mesh.tp, or set elastic.batch=none",
            recipe.elastic.batch));
  }
  resolve_groups(recipe, group_size, *groups);
  if (recipe.elastic.min_groups > *groups) {
    config::refuse(
        recipe,
        "elastic.min_groups",
        fmt::format(
            "{} vs {} replica groups, of which weftrun starts no more. Set "
            "elastic.min_groups to at most {}",
            recipe.elastic.min_groups,
            *groups,
            *groups));
  }
  check_options(recipe);
  resolve_lanes(recipe);
  const BatchParts parts =
      recipe.elastic.lanes > recipe.mesh.dp
          ? BatchParts{.key = "elastic.lanes", .count = recipe.elastic.lanes}
          : BatchParts{.key = "mesh.dp", .count = recipe.mesh.dp};
  recipe.mesh.dp = 1; // A group is one replica.
  validate(recipe, group_size, parts);
  return recipe;
}

} // namespace weft::train
