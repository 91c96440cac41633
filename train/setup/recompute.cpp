#include "train/setup/recompute.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "dtensor/nn/activation_checkpoint.h"
#include "dtensor/scopes/module_call.h"
#include "tp/module_pattern.h"

namespace weft::recipes {
namespace {

constexpr const char* kModulesKey = "train.activation_checkpoint_modules";

// One op, which keeps nothing that it would not need again.
bool is_op(torch::nn::Module& module) {
  return module.as<torch::nn::LinearImpl>() ||
         module.as<torch::nn::EmbeddingImpl>() ||
         module.as<torch::nn::LayerNormImpl>();
}

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
        (*parent)->as<torch::nn::ModuleListImpl>() && !is_op(*item.value())) {
      names.push_back(item.key());
    }
  }
  return names;
}

std::string some_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 3); ++i) {
    text += (text.empty() ? "\"" : ", \"") + names[i] + "\"";
  }
  return names.empty() ? "none" : text + (names.size() > 3 ? ", ..." : "");
}

std::vector<std::string> matching_names(
    const Recipe& recipe,
    torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& pattern : recipe.train.activation_checkpoint_modules) {
    const size_t before = names.size();
    for (const auto& item : model.named_modules()) {
      if (!tp::matches(pattern, item.key()) ||
          item.value()->as<dtensor::ModuleHooks>()) {
        continue;
      }
      if (is_op(*item.value())) {
        refuse(
            recipe,
            kModulesKey,
            "\"" + item.key() +
                "\" is one op, and to run it again saves nothing. Name what it "
                "is a part of, such as a block, its attention or its MLP");
      }
      names.push_back(item.key());
    }
    if (names.size() == before) {
      refuse(
          recipe,
          kModulesKey,
          "no module of the model matches \"" + pattern +
              "\". The blocks are " + some_names(block_names(model)));
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
  if (names.empty()) {
    refuse(
        recipe,
        "train.activation_checkpoint",
        "the model has no blocks to run again. Set it to none");
  }
  dtensor::apply_activation_checkpointing(
      model, [&](const std::string& name, torch::nn::Module& /*module*/) {
        return std::ranges::find(names, name) != names.end();
      });
}

} // namespace weft::recipes
