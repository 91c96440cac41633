#include "recipes/train/recompute.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include "dtensor/activation_checkpoint.h"
#include "dtensor/module_call.h"
#include "tp/module_pattern.h"

namespace weft::recipes {
namespace {

constexpr const char* kModulesKey = "train.activation_checkpoint_modules";

std::string_view parent_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? "" : name.substr(0, dot);
}

// Names of all elements of module lists.
std::vector<std::string> block_names(torch::nn::Module& model) {
  const auto modules = model.named_modules();
  std::vector<std::string> names;
  for (const auto& item : modules) {
    const auto* parent = modules.find(std::string(parent_of(item.key())));
    if (!item.key().empty() && parent &&
        (*parent)->as<torch::nn::ModuleListImpl>()) {
      names.push_back(item.key());
    }
  }
  return names;
}

std::vector<std::string> matching_names(
    const Recipe& recipe,
    torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& pattern : recipe.train.activation_checkpoint_modules) {
    const size_t before = names.size();
    for (const auto& item : model.named_modules()) {
      if (tp::matches(pattern, item.key()) &&
          !item.value()->as<dtensor::ModuleHooks>()) {
        names.push_back(item.key());
      }
    }
    if (names.size() == before) {
      refuse(
          recipe,
          kModulesKey,
          "no module of the model matches \"" + pattern +
              "\". Its blocks are called \"" + block_names(model).front() +
              "\" and so on");
    }
  }
  return names;
}

} // namespace

void recompute_activations(const Recipe& recipe, torch::nn::Module& model) {
  const auto& mode = recipe.train.activation_checkpoint;
  if (mode == "none") {
    return;
  }
  const auto names =
      mode == "full" ? block_names(model) : matching_names(recipe, model);
  dtensor::apply_activation_checkpointing(
      model, [&](const std::string& name, torch::nn::Module& /*module*/) {
        return std::ranges::find(names, name) != names.end();
      });
}

} // namespace weft::recipes
