#include "train/setup/module_names.h"

#include <algorithm>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "dtensor/scopes/module_call.h"
#include "tp/module_pattern.h"

namespace weft::train {
namespace {

std::string_view parent_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? "" : name.substr(0, dot);
}

std::string some_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 3); ++i) {
    text += (text.empty() ? "\"" : ", \"") + names[i] + "\"";
  }
  return names.empty() ? "none" : text + (names.size() > 3 ? ", ..." : "");
}

} // namespace

bool is_op(torch::nn::Module& module) {
  return module.as<torch::nn::LinearImpl>() ||
         module.as<torch::nn::EmbeddingImpl>() ||
         module.as<torch::nn::LayerNormImpl>();
}

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

std::vector<std::string> matching_names(
    const config::Recipe& recipe,
    std::string_view key,
    const std::vector<std::string>& patterns,
    torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& pattern : patterns) {
    bool any = false;
    for (const auto& item : model.named_modules()) {
      if (!tp::matches(pattern, item.key()) ||
          item.value()->as<dtensor::ModuleHooks>()) {
        continue;
      }
      any = true;
      if (std::ranges::find(names, item.key()) == names.end()) {
        names.push_back(item.key());
      }
    }
    if (!any) {
      config::refuse(
          recipe,
          key,
          "no module of the model matches \"" + pattern +
              "\". The blocks are " + some_names(block_names(model)));
    }
  }
  return names;
}

} // namespace weft::train
