#include "recipes/train/initial_weights.h"

#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/load.h"
#include "checkpoint/store.h"

namespace weft::recipes {
namespace {

namespace fs = std::filesystem;

constexpr const char* kInitKey = "checkpoint.init_from";
constexpr const char* kModelPart = "model";

// Of a step folder, a folder of them, or a run's.
fs::path find_step(const Recipe& recipe) {
  const fs::path given = recipe.checkpoint.init_from;
  if (fs::exists(given / "manifest.json")) {
    return given;
  }
  for (const auto& folder : {given, given / "checkpoints"}) {
    if (const auto steps = checkpoint::list_steps(folder); !steps.empty()) {
      return steps.front().path;
    }
  }
  refuse(
      recipe,
      kInitKey,
      fmt::format(
          "\"{}\" holds no checkpoint. Give a step folder, such as "
          "outputs/quickstart/checkpoints/step-200, or a run's folder",
          given.string()));
}

bool is_adapter(const std::string& name) {
  return name.find(".lora_A.") != std::string::npos ||
         name.find(".lora_B.") != std::string::npos;
}

// What the checkpoint has of the model; both have all else alike.
dtensor::StateDict shared_tensors(
    const Recipe& recipe,
    const dtensor::StateDict& model,
    const checkpoint::Manifest& manifest) {
  const auto prefix = std::string(kModelPart) + ".";
  dtensor::StateDict shared;
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : model) {
    if (manifest.tensors.contains(prefix + name)) {
      shared.emplace(name, tensor);
    } else if (!is_adapter(name)) {
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
    refuse(
        recipe,
        kInitKey,
        fmt::format(
            "{} is of another model: {} of the model's tensors are not in it "
            "({}), {} of its tensors not in the model ({})",
            recipe.checkpoint.init_from,
            missing.size(),
            some(missing),
            unknown.size(),
            some(unknown)));
  }
  return shared;
}

} // namespace

std::string load_initial_weights(const Recipe& recipe, TrainJob& job) {
  const auto step = find_step(recipe);
  const auto world = job.mesh.world();
  const auto manifest = checkpoint::read_manifest(step, world);
  const auto shared = shared_tensors(
      recipe, job.ddp->state_dict(job.model->computed_buffers()), manifest);
  try {
    checkpoint::load(
        step,
        manifest,
        {{kModelPart, shared}},
        {.strict = false, .world = world});
  } catch (const c10::ValueError& error) {
    refuse(recipe, kInitKey, error.what_without_backtrace());
  }
  return fmt::format(
      "begins with the weights of {} ({} tensors)",
      step.string(),
      shared.size());
}

} // namespace weft::recipes
