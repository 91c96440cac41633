#include "tp/parallelize_module.h"

#include <string_view>

#include <torch/torch.h>

#include "dtensor/distribute_module.h"
#include "dtensor/module_call.h"
#include "mesh/error.h"

namespace weft::tp {
namespace {

bool matches_component(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) {
    return text.empty();
  }
  if (pattern[0] == '*') {
    return matches_component(pattern.substr(1), text) ||
           (!text.empty() && matches_component(pattern, text.substr(1)));
  }
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
         matches_component(pattern.substr(1), text.substr(1));
}

std::pair<std::string_view, std::string_view> split_first(
    std::string_view path) {
  const auto dot = path.find('.');
  return dot == std::string_view::npos
             ? std::pair(path, std::string_view())
             : std::pair(path.substr(0, dot), path.substr(dot + 1));
}

// Hooks are kept in a module as a child, which no pattern is meant for.
bool is_hooks(torch::nn::Module& module) {
  return module.as<dtensor::ModuleHooks>() != nullptr;
}

std::string names_of(const torch::nn::Module& module) {
  std::string names;
  for (const auto& item : module.named_modules()) {
    if (is_hooks(*item.value())) {
      continue;
    }
    names += names.empty() ? "" : ", ";
    names += "\"" + item.key() + "\"";
    if (names.size() > 400) {
      return names + ", ...";
    }
  }
  return names;
}

void apply_style(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const std::string& pattern,
    const ParallelStyle& style) {
  bool any = false;
  for (const auto& item : module.named_modules()) {
    if (matches(pattern, item.key()) && !is_hooks(*item.value())) {
      style.apply(*item.value(), mesh, item.key());
      any = true;
    }
  }
  WEFT_CHECK(
      any,
      "parallelize_module",
      mesh::ErrorContext{mesh.describe_rank()},
      "no module matches \"",
      pattern,
      "\". There are ",
      names_of(module),
      ".");
}

} // namespace

bool matches(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) {
    return path.empty();
  }
  const auto [head, tail] = split_first(pattern);
  if (head == "**") {
    for (auto rest = path;; rest = split_first(rest).second) {
      if (matches(tail, rest)) {
        return true;
      }
      if (rest.empty()) {
        return false;
      }
    }
  }
  if (path.empty()) {
    return false;
  }
  const auto [first, rest] = split_first(path);
  return matches_component(head, first) && matches(tail, rest);
}

void parallelize_module(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const ParallelizePlan& plan) {
  WEFT_CHECK_EQ(
      "parallelize_module",
      mesh.ndim(),
      1,
      mesh::ErrorContext{mesh.describe_rank()},
      "Pass one mesh dim, e.g. mesh[\"tp\"].");
  for (const auto& [pattern, style] : plan) {
    apply_style(module, mesh, pattern, style);
  }
  // What no style has placed is whole on every rank.
  dtensor::replicate_unplaced(module, mesh);
}

} // namespace weft::tp
