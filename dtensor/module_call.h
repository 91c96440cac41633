#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace weft::dtensor {

/// What acts on a whole module: a style that places its inputs and outputs,
/// activation checkpointing, names in the ledger.
struct ModuleHooks : torch::nn::Module {
  /// Gets the tensor arguments of a call and may replace them.
  using Before = std::function<void(std::vector<at::Tensor>&)>;
  /// Gets the result and may replace it.
  using After = std::function<at::Tensor(const at::Tensor&)>;
  std::vector<Before> before;
  std::vector<After> after;
  /// distribute_module() has put hooks here.
  bool distributed = false;
};

/// The hooks of a module, made at the first call. They are kept in the module
/// itself, as a child that has no parameters.
ModuleHooks& module_hooks(torch::nn::Module& module);
/// The same, or null if the module has none.
ModuleHooks* find_module_hooks(torch::nn::Module& module);

namespace detail {

inline torch::nn::Module& as_module(torch::nn::Module& module) {
  return module;
}
template <class Impl>
torch::nn::Module& as_module(torch::nn::ModuleHolder<Impl>& holder) {
  return *holder;
}
template <class Impl>
torch::nn::Module& as_module(const std::shared_ptr<Impl>& module) {
  return *module;
}

} // namespace detail

/// Calls module->forward(first, rest...) through the module's hooks: C++
/// modules have none of their own, and forward() is not virtual. Models call
/// their blocks, attention and MLPs through it; without hooks it costs one
/// look-up. The hooks see and may replace `first`; forward() returns a tensor.
template <class Holder, class... Rest>
at::Tensor call(Holder module, const at::Tensor& first, Rest&&... rest) {
  auto* hooks = find_module_hooks(detail::as_module(module));
  if (!hooks) {
    return module->forward(first, std::forward<Rest>(rest)...);
  }
  std::vector<at::Tensor> inputs{first};
  for (const auto& hook : hooks->before) {
    hook(inputs);
  }
  auto output = module->forward(inputs.at(0), std::forward<Rest>(rest)...);
  for (const auto& hook : hooks->after) {
    output = hook(output);
  }
  return output;
}

} // namespace weft::dtensor
