#include "dtensor/scopes/module_call.h"

#include <c10/util/Exception.h>

namespace weft::dtensor {
namespace {

constexpr const char* kChild = "_weft_hooks";

void require_same_count(
    const char* hook,
    const char* tensors,
    size_t now,
    size_t before) {
  TORCH_CHECK_VALUE(
      now == before,
      "[call] the number of ",
      tensors,
      " after ",
      hook,
      " hook == before: ",
      now,
      " vs ",
      before,
      ". A hook may replace tensors, but not add or remove any.");
}

} // namespace

std::string module_type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  const size_t colon = name.rfind(':');
  name.erase(0, colon == std::string::npos ? 0 : colon + 1);
  if (name.ends_with("Impl")) {
    name.erase(name.size() - 4);
  }
  return name;
}

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

void ModuleHooks::After::require_one(size_t outputs) {
  TORCH_CHECK_VALUE(
      outputs == 1,
      "[call] the number of tensors that forward() returns == 1: ",
      outputs,
      " vs 1. Write the hook as void(std::vector<at::Tensor>&).");
}

namespace detail {

void run_before(const ModuleHooks& hooks, CallInputs& inputs) {
  const size_t args = inputs.args.size();
  const size_t kwargs = inputs.kwargs.size();
  for (const auto& hook : hooks.before) {
    hook(inputs);
    require_same_count("a before", "arguments", inputs.args.size(), args);
    require_same_count(
        "a before", "named arguments", inputs.kwargs.size(), kwargs);
  }
}

void run_after(const ModuleHooks& hooks, std::vector<at::Tensor>& outputs) {
  const size_t count = outputs.size();
  for (const auto& hook : hooks.after) {
    hook(outputs);
    require_same_count("an after", "outputs", outputs.size(), count);
  }
}

std::vector<at::Tensor> run_around(
    const ModuleHooks& hooks,
    ModuleHooks::Forward forward,
    size_t count) {
  for (const auto& hook : hooks.around) {
    forward = [hook, inner = std::move(forward)] { return hook(inner); };
  }
  auto outputs = forward();
  if (count != kAnyCount) {
    require_same_count("an around", "outputs", outputs.size(), count);
  }
  return outputs;
}

void throw_cannot_keep(const torch::nn::Module& module) {
  C10_THROW_ERROR(
      ValueError,
      "[call] a hook on the calls of a " + module.name() +
          " copies the arguments, but one argument cannot be copied, or "
          "forward() takes it by non-const reference. Take it by value or "
          "const reference, or remove the hook.");
}

} // namespace detail
} // namespace weft::dtensor
