#include "train/setup/initial_weights.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/dotted_pattern.h"
#include "checkpoint/load/load.h"
#include "checkpoint/store/store.h"
#include "dtensor/nn/state_dict.h"
#include "hf/load_weights.h"
#include "mesh/error/error.h"
#include "train/setup/checkpoint_key.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInitKey = "checkpoint.init_from";
constexpr const char* kModelPart = "model";
constexpr const char* kModelPrefix = "model.";

// A checkpoint and the place, for messages, that names it.
struct Source {
  fs::path path;
  std::string place;
  std::string hmac_key = {};
};

[[noreturn]] void refuse_source(
    const Source& source,
    const std::string& message) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("{}: {}", source.place, message));
}

// Returns the newest step. The path of the source is a step folder, a folder of
// steps, or the folder of a run.
fs::path find_step(const Source& source) {
  std::error_code ignored;
  if (fs::exists(source.path / checkpoint::kManifestName, ignored)) {
    return source.path;
  }
  for (const auto& folder : {source.path, source.path / "checkpoints"}) {
    if (const auto steps = checkpoint::list_steps(folder); !steps.empty()) {
      return steps.front().path;
    }
  }
  refuse_source(
      source,
      fmt::format(
          "\"{}\" has no checkpoint. Give a step folder, such as "
          "outputs/quickstart/checkpoints/step-200, or a run's folder",
          source.path.string()));
}

// Returns the tensors of the model that the checkpoint contains. Throws if the
// checkpoint has a tensor that the model lacks, or lacks one that is not an
// adapter.
dtensor::StateDict shared_tensors(
    const Source& source,
    const dtensor::StateDict& model,
    const checkpoint::Manifest& manifest) {
  const auto prefix = std::string(kModelPart) + ".";
  dtensor::StateDict shared;
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : model) {
    if (manifest.tensors.contains(prefix + name)) {
      shared.emplace(name, tensor);
    } else if (!hf::is_adapter(name)) {
      missing.push_back(name);
    }
  }
  std::vector<std::string> unknown;
  for (const auto& [key, record] : manifest.tensors) {
    if (key.starts_with(prefix) && !model.contains(key.substr(prefix.size()))) {
      unknown.push_back(key.substr(prefix.size()));
    }
  }
  const auto some = [](std::vector<std::string> names) {
    const size_t count = names.size();
    names.resize(std::min<size_t>(count, 3));
    return fmt::format(
        "{}{}", fmt::join(names, ", "), count > 3 ? ", ..." : "");
  };
  if (!missing.empty() || !unknown.empty()) {
    refuse_source(
        source,
        fmt::format(
            "{} belongs to another model: {} of the model's tensors are "
            "missing in it ({}), {} of its tensors are not in the model ({})",
            source.path.string(),
            missing.size(),
            some(missing),
            unknown.size(),
            some(unknown)));
  }
  return shared;
}

constexpr const char* kRuleHint =
    " In a recipe these are checkpoint.init_rename, init_include, init_exclude "
    "and init_strict.";

struct InitRules {
  const config::Recipe& recipe;

  bool any() const {
    const auto& checkpoint = recipe.checkpoint;
    return !checkpoint.init_include.empty() ||
           !checkpoint.init_exclude.empty() ||
           !checkpoint.init_rename.empty() ||
           checkpoint.init_strict != config::InitStrict::kExact;
  }

  checkpoint::Strictness strictness() const {
    using checkpoint::Strictness;
    switch (recipe.checkpoint.init_strict) {
      case config::InitStrict::kBothOk:
        return Strictness::kAllowBoth;
      case config::InitStrict::kMissingOk:
        return Strictness::kAllowMissing;
      case config::InitStrict::kUnexpectedOk:
        return Strictness::kAllowUnexpected;
      case config::InitStrict::kExact:
        break;
    }
    return Strictness::kExact;
  }
};

std::set<std::string> renamed_keys(
    const config::Recipe& recipe,
    const checkpoint::Manifest& manifest) {
  constexpr const char* kRenameKey = "checkpoint.init_rename";
  const checkpoint::Renaming rename(init_rename_rules(recipe));
  std::set<std::string> keys;
  for (const auto& [name, record] : manifest.tensors) {
    std::string key;
    try {
      key = rename(name);
    } catch (const c10::ValueError& error) {
      config::refuse(recipe, kRenameKey, error.what_without_backtrace());
    }
    if (!keys.insert(key).second) {
      config::refuse(
          recipe,
          kRenameKey,
          fmt::format(
              "\"{}\" would be renamed to \"{}\", the name of another tensor. "
              "Make the pattern narrower",
              name,
              key));
    }
  }
  return keys;
}

// Returns the patterns with the prefix of the model's keys. Refuses a pattern
// that matches no key.
std::vector<std::string> model_patterns(
    const config::Recipe& recipe,
    const char* key,
    const std::vector<std::string>& patterns,
    const std::set<std::string>& keys) {
  std::vector<std::string> result;
  for (const auto& pattern : patterns) {
    result.push_back(kModelPrefix + pattern);
    if (std::ranges::none_of(keys, [&](const std::string& each) {
          return base::matches_dotted(result.back(), each);
        })) {
      config::refuse(
          recipe,
          key,
          fmt::format(
              "\"{}\" matches no tensor of the model or of init_from. `*` does "
              "not match a dot, `**` does",
              pattern));
    }
  }
  return result;
}

// Leaves out adapters that the checkpoint lacks. They keep their usual initial
// values.
dtensor::StateDict without_new_adapters(
    const dtensor::StateDict& model,
    const std::set<std::string>& keys) {
  dtensor::StateDict result;
  for (const auto& [name, tensor] : model) {
    if (!hf::is_adapter(name) || keys.contains(kModelPrefix + name)) {
      result.emplace(name, tensor);
    }
  }
  return result;
}

std::string load_by_rules(
    const Source& source,
    const InitRules& rules,
    const dtensor::StateDict& state,
    const mesh::World& world) {
  const auto& recipe = rules.recipe;
  const auto step = find_step(source);
  const auto manifest = checkpoint::read_manifest(step, world);
  auto keys = renamed_keys(recipe, manifest);
  const auto wanted = without_new_adapters(state, keys);
  for (const auto& [name, tensor] : state) {
    keys.insert(kModelPrefix + name);
  }
  const auto& init = recipe.checkpoint;
  checkpoint::LoadStats stats;
  try {
    stats = checkpoint::load(
        step,
        manifest,
        {{kModelPart, wanted}},
        {.all_or_nothing = false,
         .strictness = rules.strictness(),
         .include = model_patterns(
             recipe, "checkpoint.init_include", init.init_include, keys),
         .exclude = model_patterns(
             recipe, "checkpoint.init_exclude", init.init_exclude, keys),
         .rename = init_rename_rules(recipe),
         .world = world});
  } catch (const mesh::UsageError&) {
    throw;
  } catch (const c10::ValueError& error) {
    refuse_source(
        source, std::string(error.what_without_backtrace()) + kRuleHint);
  }
  return fmt::format(
      "begins with weights of {} ({} of the model's {} tensors; {} are missing "
      "in it, {} of its tensors were not used)",
      step.string(),
      stats.loaded.size(),
      state.size(),
      stats.missing.size(),
      stats.unexpected.size());
}

// Returns the tensors to load, by part of the checkpoint. With kEma, a tensor
// is loaded from its average if there is one.
checkpoint::StateDicts parts_of(
    const Source& source,
    const dtensor::StateDict& shared,
    const checkpoint::Manifest& manifest,
    WeightKind kind) {
  if (kind == WeightKind::kTrained) {
    return {{kModelPart, shared}};
  }
  if (!has_part(manifest, kAveragePart)) {
    refuse_source(
        source,
        fmt::format(
            "{} has no EMA weights. Train with ema.decay to save them",
            source.path.string()));
  }
  const auto prefix = std::string(kAveragePart) + ".";
  checkpoint::StateDicts parts;
  for (const auto& [name, tensor] : shared) {
    const bool averaged = manifest.tensors.contains(prefix + name);
    parts[averaged ? kAveragePart : kModelPart].emplace(name, tensor);
  }
  return parts;
}

std::string load_checkpoint(
    const Source& source,
    const dtensor::StateDict& state,
    const mesh::World& world,
    WeightKind kind = WeightKind::kTrained) {
  const auto step = find_step(source);
  const auto manifest = checkpoint::read_manifest(step, world, source.hmac_key);
  const auto shared = shared_tensors(source, state, manifest);
  const auto parts = parts_of(source, shared, manifest, kind);
  try {
    // If the load fails the run ends, so no tensor needs its old value.
    checkpoint::load(
        step,
        manifest,
        parts,
        {.all_or_nothing = false,
         .strictness = checkpoint::Strictness::kAllowUnexpected,
         .world = world});
  } catch (const c10::ValueError& error) {
    refuse_source(source, error.what_without_backtrace());
  }
  return fmt::format(
      "begins with the {}weights of {} ({} tensors)",
      kind == WeightKind::kEma ? "averaged " : "",
      step.string(),
      shared.size());
}

Source init_source(const config::Recipe& recipe) {
  return {
      .path = recipe.checkpoint.init_from,
      .place = config::place_of(recipe, kInitKey)};
}

} // namespace

bool has_initial_weights(const config::Recipe& recipe) {
  return !recipe.checkpoint.init_from.empty() || !recipe.model.from.empty();
}

void check_initial_weights(const config::Recipe& recipe) {
  if (!recipe.checkpoint.init_from.empty()) {
    find_step(init_source(recipe));
  } else if (!recipe.model.from.empty()) {
    hf::check_weights(recipe);
  }
}

std::string load_model_weights(
    const config::Recipe& recipe,
    models::Model& model,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint,
    WeightKind kind) {
  const auto& world = mesh.world();
  const auto state =
      dtensor::module_state_dict(model, mesh, model.computed_buffers());
  if (!checkpoint.empty()) {
    return load_checkpoint(
        {.path = checkpoint,
         .place = "--checkpoint",
         .hmac_key = read_hmac_key(recipe)},
        state,
        world,
        kind);
  }
  if (!recipe.checkpoint.init_from.empty()) {
    const InitRules rules{recipe};
    return rules.any() ? load_by_rules(init_source(recipe), rules, state, world)
                       : load_checkpoint(init_source(recipe), state, world);
  }
  if (recipe.model.from.empty()) {
    config::refuse(
        recipe,
        "model.from",
        "no weights were given. Give a checkpoint or the folder of a model");
  }
  const auto loaded = hf::load_weights(recipe, state, world);
  return fmt::format(
      "begins with the weights of {} ({} tensors){}{}",
      recipe.model.from,
      loaded.tensors,
      loaded.notice.empty() ? "" : ": ",
      loaded.notice);
}

std::string load_initial_weights(const config::Recipe& recipe, TrainJob& job) {
  return load_model_weights(recipe, *job.model, job.mesh);
}

} // namespace weft::train
