#include "train/setup/recompute.h"

#include <algorithm>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "dtensor/nn/activation_checkpoint.h"
#include "train/setup/module_names.h"

namespace weft::train {
namespace {

constexpr const char* kModulesKey = "train.activation_checkpoint_modules";

std::vector<std::string> named_modules_of(
    const config::Recipe& recipe,
    torch::nn::Module& model) {
  const auto names = matching_names(
      recipe, kModulesKey, recipe.train.activation_checkpoint_modules, model);
  const auto modules = model.named_modules();
  for (const auto& name : names) {
    if (is_op(*modules[name])) {
      config::refuse(
          recipe,
          kModulesKey,
          "\"" + name +
              "\" is a single op, and recomputing it saves no memory. Name a "
              "larger module, such as a block, its attention or its MLP");
    }
  }
  return names;
}

} // namespace

void recompute_activations(
    const config::Recipe& recipe,
    torch::nn::Module& model) {
  using config::ActivationCheckpoint;
  const auto mode = recipe.train.activation_checkpoint;
  if (mode == ActivationCheckpoint::kNone) {
    return;
  }
  const auto names = mode == ActivationCheckpoint::kFull
                         ? block_names(model)
                         : named_modules_of(recipe, model);
  if (names.empty()) {
    config::refuse(
        recipe,
        "train.activation_checkpoint",
        "the model has no module list to checkpoint. Set "
        "train.activation_checkpoint to none");
  }
  dtensor::apply_activation_checkpointing(
      model, [&](const std::string& name, torch::nn::Module& /*module*/) {
        return std::ranges::find(names, name) != names.end();
      });
}

} // namespace weft::train
