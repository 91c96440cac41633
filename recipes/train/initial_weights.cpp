#include "recipes/train/initial_weights.h"

#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/load.h"
#include "checkpoint/store.h"
#include "dtensor/state_dict.h"
#include "mesh/error.h"
#include "recipes/hub/load_weights.h"

namespace weft::recipes {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInitKey = "checkpoint.init_from";
constexpr const char* kModelPart = "model";

// A checkpoint, and what messages call the place that named it.
struct Source {
  fs::path path;
  std::string place;
};

[[noreturn]] void refuse_source(
    const Source& source,
    const std::string& message) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("{}: {}", source.place, message));
}

// Of a step folder, a folder of them, or a run's.
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
          "\"{}\" holds no checkpoint. Give a step folder, such as "
          "outputs/quickstart/checkpoints/step-200, or a run's folder",
          source.path.string()));
}

// What the checkpoint has of the model; both have all else alike.
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
    } else if (!hub::is_adapter(name)) {
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
            "{} is of another model: {} of the model's tensors are not in it "
            "({}), {} of its tensors not in the model ({})",
            source.path.string(),
            missing.size(),
            some(missing),
            unknown.size(),
            some(unknown)));
  }
  return shared;
}

std::string load_checkpoint(
    const Source& source,
    const dtensor::StateDict& state,
    const mesh::World& world) {
  const auto step = find_step(source);
  const auto manifest = checkpoint::read_manifest(step, world);
  const auto shared = shared_tensors(source, state, manifest);
  try {
    // Nobody goes on with a model that could not be loaded.
    checkpoint::load(
        step,
        manifest,
        {{kModelPart, shared}},
        {.all_or_nothing = false,
         .strictness = checkpoint::Strictness::kAllowUnexpected,
         .world = world});
  } catch (const c10::ValueError& error) {
    refuse_source(source, error.what_without_backtrace());
  }
  return fmt::format(
      "begins with the weights of {} ({} tensors)",
      step.string(),
      shared.size());
}

Source init_source(const Recipe& recipe) {
  return {recipe.checkpoint.init_from, place_of(recipe, kInitKey)};
}

} // namespace

bool has_initial_weights(const Recipe& recipe) {
  return !recipe.checkpoint.init_from.empty() || !recipe.model.from.empty();
}

void check_initial_weights(const Recipe& recipe) {
  if (!recipe.checkpoint.init_from.empty()) {
    find_step(init_source(recipe));
  } else if (!recipe.model.from.empty()) {
    hub::check_weights(recipe);
  }
}

std::string load_model_weights(
    const Recipe& recipe,
    Model& model,
    const mesh::DeviceMesh& mesh,
    const std::string& checkpoint) {
  const auto& world = mesh.world();
  const auto state =
      dtensor::module_state_dict(model, mesh, model.computed_buffers());
  if (!checkpoint.empty()) {
    return load_checkpoint({checkpoint, "--checkpoint"}, state, world);
  }
  if (!recipe.checkpoint.init_from.empty()) {
    return load_checkpoint(init_source(recipe), state, world);
  }
  if (recipe.model.from.empty()) {
    refuse(
        recipe,
        "model.from",
        "there are no weights. Name a checkpoint, or the folder of a model "
        "here");
  }
  const auto loaded = hub::load_weights(recipe, state, world);
  return fmt::format(
      "begins with the weights of {} ({} tensors)",
      recipe.model.from,
      loaded.tensors);
}

std::string load_initial_weights(const Recipe& recipe, TrainJob& job) {
  return load_model_weights(recipe, *job.model, job.mesh);
}

} // namespace weft::recipes
