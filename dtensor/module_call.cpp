#include "dtensor/module_call.h"

namespace weft::dtensor {
namespace {

constexpr const char* kChild = "_weft_hooks";

} // namespace

ModuleHooks* find_module_hooks(torch::nn::Module& module) {
  const auto children = module.named_children();
  const auto* child = children.find(kChild);
  return child ? static_cast<ModuleHooks*>(child->get()) : nullptr;
}

ModuleHooks& module_hooks(torch::nn::Module& module) {
  if (auto* hooks = find_module_hooks(module)) {
    return *hooks;
  }
  return *module.register_module(kChild, std::make_shared<ModuleHooks>());
}

} // namespace weft::dtensor
