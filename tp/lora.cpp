#include "tp/lora.h"

#include <algorithm>
#include <optional>

#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/linear_adapter.h"
#include "dtensor/nn/distribute_module.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/spec/placement.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"
#include "tp/module_pattern.h"

namespace weft::tp {
namespace {

using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using torch::nn::LinearImpl;

constexpr const char* kDown = "lora_A";
constexpr const char* kUp = "lora_B";

struct Target {
  std::string name;
  LinearImpl* linear;
};

[[noreturn]] void refuse_lora(const std::string& message) {
  mesh::throw_error<c10::ValueError>("[add_lora] " + message);
}

bool has_adapter(const LinearImpl& linear) {
  return dtensor::is_dtensor(linear.weight) &&
         dtensor::parameter_info(linear.weight).adapter != nullptr;
}

Target checked_target(const std::string& name, torch::nn::Module& module) {
  auto* linear = module.as<LinearImpl>();
  if (!linear) {
    refuse_lora(
        "module \"" + name + "\" is a " + module.name() +
        ", not a Linear. Use a pattern that matches only Linears.");
  }
  if (!dtensor::is_dtensor(linear->weight) ||
      dtensor::spec_of(linear->weight).mesh_ndim() == 0) {
    refuse_lora(
        "the weight of \"" + name +
        "\" is not on a mesh. Call parallelize_module() first.");
  }
  if (has_adapter(*linear)) {
    refuse_lora("\"" + name + "\" already has an adapter.");
  }
  return {name, linear};
}

[[noreturn]] void refuse_no_match(
    const std::string& pattern,
    torch::nn::Module& module) {
  std::vector<std::string> linears;
  for (const auto& item : module.named_modules()) {
    if (item.value()->as<LinearImpl>()) {
      linears.push_back(item.key());
    }
  }
  std::string near;
  for (const auto& name : nearest_names(pattern, linears)) {
    near += (near.empty() ? " Did you mean \"" : "\" or \"") + name;
  }
  refuse_lora(
      "no module matches \"" + pattern + "\"." +
      (near.empty() ? "" : near + "\"?"));
}

std::vector<Target> find_targets(
    torch::nn::Module& module,
    const std::vector<std::string>& patterns) {
  std::vector<Target> targets;
  for (const auto& pattern : patterns) {
    bool any = false;
    for (const auto& item : module.named_modules()) {
      if (!matches(pattern, item.key()) ||
          item.value()->as<dtensor::ModuleHooks>()) {
        continue;
      }
      any = true;
      const bool is_known = std::ranges::any_of(
          targets, [&](const auto& known) { return known.name == item.key(); });
      if (!is_known) {
        targets.push_back(checked_target(item.key(), *item.value()));
      }
    }
    if (!any) {
      refuse_no_match(pattern, module);
    }
  }
  return targets;
}

torch::nn::Linear
small_linear(int64_t in, int64_t out, const at::TensorOptions& options) {
  torch::nn::Linear linear(torch::nn::LinearOptions(in, out).bias(false));
  linear->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
  return linear;
}

// Returns the placements of an adapter's weight, given those of the layer's
// weight. They are sharded where the layer's weight is sharded along `dim`. See
// dtensor::LinearAdapter.
dtensor::Placements beside(const Placements& weight, int64_t dim) {
  Placements placements;
  for (const auto& cut : weight) {
    placements.push_back(cut.is_shard(dim) ? Shard(dim) : Replicate());
  }
  return placements;
}

void add_adapter(const Target& target, const LoraOptions& options) {
  auto& linear = *target.linear;
  const auto spec = dtensor::spec_of(linear.weight);
  dtensor::LinearAdapter adapter;
  {
    std::optional<dtensor::DeferredInit> scope;
    if (dtensor::is_deferred(linear.weight)) {
      scope.emplace();
    }
    const auto like = at::TensorOptions(linear.weight.device())
                          .dtype(linear.weight.scalar_type());
    adapter.down = small_linear(linear.weight.size(1), options.rank, like);
    adapter.up = small_linear(options.rank, linear.weight.size(0), like);
    torch::nn::init::zeros_(adapter.up->weight);
  }
  adapter.scale = options.alpha / static_cast<double>(options.rank);
  adapter.dropout = options.dropout;
  linear.register_module(kDown, adapter.down);
  linear.register_module(kUp, adapter.up);
  const auto place =
      [&](torch::nn::Linear& part, const char* name, int64_t dim) {
        dtensor::distribute_parameter(
            *part,
            "weight",
            spec.mesh(),
            beside(spec.placements(), dim),
            target.name + "." + name);
      };
  place(adapter.down, kDown, 1);
  place(adapter.up, kUp, 0);
  dtensor::parameter_info(linear.weight).adapter =
      std::make_shared<const dtensor::LinearAdapter>(std::move(adapter));
}

} // namespace

std::vector<std::string> add_lora(
    torch::nn::Module& module,
    const std::vector<std::string>& patterns,
    const LoraOptions& options) {
  if (options.rank < 1 || options.dropout < 0 || options.dropout >= 1) {
    refuse_lora(
        "expected rank >= 1 and 0 <= dropout < 1, got rank " +
        std::to_string(options.rank) + ", dropout " +
        std::to_string(options.dropout) + ".");
  }
  const auto targets = find_targets(module, patterns);
  for (auto& parameter : module.parameters()) {
    parameter.requires_grad_(false);
  }
  std::vector<std::string> names;
  for (const auto& target : targets) {
    add_adapter(target, options);
    names.push_back(target.name);
  }
  return names;
}

void merge_lora(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& each : module.modules()) {
    auto* linear = each->as<LinearImpl>();
    if (!linear || !has_adapter(*linear)) {
      continue;
    }
    auto& info = dtensor::parameter_info(linear->weight);
    linear->weight.add_(
        at::mm(info.adapter->up->weight, info.adapter->down->weight),
        info.adapter->scale);
    info.adapter.reset();
    linear->unregister_module(kDown);
    linear->unregister_module(kUp);
  }
  for (auto& parameter : module.parameters()) {
    parameter.requires_grad_(true);
  }
}

} // namespace weft::tp
