#include "checkpoint/state_dict/state_dict.h"

#include <algorithm>
#include <functional>
#include <map>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "checkpoint/files/text.h"
#include "checkpoint/state_dict/fill_state.h"
#include "dtensor/nn/optimizer_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

using dtensor::StateDict;
using mesh::DeviceMesh;
using torch::nn::Module;
using torch::optim::Optimizer;

constexpr const char* kGetModel = "get_model_state_dict";
constexpr const char* kGetOptimizer = "get_optimizer_state_dict";
constexpr const char* kSetModel = "set_model_state_dict";
constexpr const char* kSetOptimizer = "set_optimizer_state_dict";

using Visit = std::function<void(const std::string&, const at::Tensor&)>;

void for_each_persistent(
    const Module& module,
    const StateDictOptions& options,
    const Visit& visit) {
  const auto visit_known = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined() && !options.ignore.contains(item.key())) {
        visit(item.key(), item.value());
      }
    }
  };
  visit_known(module.named_parameters());
  visit_known(module.named_buffers());
}

std::optional<DeviceMesh> mesh_of(const at::Tensor& tensor) {
  const auto* impl = dtensor::dtensor_impl(tensor);
  if (!impl || impl->spec().mesh_ndim() == 0) {
    return std::nullopt;
  }
  return impl->spec().mesh().root();
}

std::optional<DeviceMesh> find_mesh(
    const Module& module,
    const StateDictOptions& options) {
  auto mesh = options.mesh;
  for_each_persistent(module, options, [&](const auto&, const auto& tensor) {
    mesh = mesh ? mesh : mesh_of(tensor);
  });
  return mesh;
}

at::Tensor without_mesh(const at::Tensor& tensor) {
  const auto* impl = dtensor::dtensor_impl(tensor);
  return impl ? impl->local() : tensor.detach();
}

/// Returns the state of the module, which shares the module's memory.
StateDict model_state(
    const Module& module,
    const StateDictOptions& options,
    const std::optional<DeviceMesh>& mesh) {
  StateDict state;
  for_each_persistent(
      module, options, [&](const auto& name, const auto& tensor) {
        state[name] =
            mesh ? dtensor::on_mesh(tensor, *mesh) : without_mesh(tensor);
      });
  return state;
}

std::set<std::string> left_out(
    const Module& module,
    const StateDictOptions& options) {
  auto names = options.ignore;
  if (options.ignore_frozen_params) {
    for (const auto& item : module.named_parameters()) {
      if (!item.value().requires_grad()) {
        names.insert(item.key());
      }
    }
  }
  return names;
}

StateDict without(const StateDict& state, const std::set<std::string>& names) {
  StateDict result;
  for (const auto& [name, tensor] : state) {
    if (!names.contains(name)) {
      result.emplace(name, tensor);
    }
  }
  return result;
}

// ---- submodules -------------------------------------------------------------

std::string prefix_of(const Module& module, const Module* submodule) {
  if (submodule == &module) {
    return "";
  }
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.value().get() == submodule) {
      return item.key() + ".";
    }
  }
  TORCH_CHECK_VALUE(
      false,
      "[",
      kGetModel,
      "] a ",
      submodule ? submodule->name() : "null pointer",
      " in `submodules` is not a submodule of the module ",
      module.name(),
      ".");
}

StateDict of_submodules(
    const Module& module,
    const StateDict& state,
    const Submodules& submodules,
    bool keep_prefixes) {
  StateDict result;
  for (const auto* submodule : submodules) {
    const auto prefix = prefix_of(module, submodule);
    for (const auto& [name, tensor] : state) {
      if (!name.starts_with(prefix)) {
        continue;
      }
      const auto key = keep_prefixes ? name : name.substr(prefix.size());
      const auto [found, is_new] = result.emplace(key, tensor);
      TORCH_CHECK_VALUE(
          is_new || keep_prefixes,
          "[",
          kGetModel,
          "] two submodules have a ",
          in_quotes(key),
          ". Keep the prefixes (keep_submodule_prefixes), or ask for one "
          "submodule at a time.");
    }
  }
  return result;
}

// ---- full and on the CPU ----------------------------------------------------

at::Tensor copied(const at::Tensor& tensor, bool to_cpu) {
  return to_cpu && !tensor.is_cpu() ? tensor.cpu() : tensor.clone();
}

StateDict full_state(const StateDict& state, bool cpu_offload) {
  StateDict result;
  for (const auto& [name, tensor] : state) {
    const bool is_cut = dtensor::is_dtensor(tensor);
    // Collective: ranks that do not keep the result take part, too.
    const auto full = is_cut ? dtensor::full_tensor(tensor) : tensor;
    const auto mesh = mesh_of(tensor);
    if (cpu_offload && mesh && mesh->world().rank() != 0) {
      continue;
    }
    const bool is_own = is_cut && !full.is_alias_of(without_mesh(tensor)) &&
                        (full.is_cpu() || !cpu_offload);
    result[name] = is_own ? full : copied(full, cpu_offload);
  }
  return result;
}

StateDict offloaded(const StateDict& state) {
  StateDict result;
  for (const auto& [name, tensor] : state) {
    const auto* impl = dtensor::dtensor_impl(tensor);
    result[name] = impl ? dtensor::make_dtensor(
                              copied(impl->local(), /*to_cpu=*/true),
                              impl->spec(),
                              impl->sizes(),
                              impl->strides())
                        : copied(tensor, /*to_cpu=*/true);
  }
  return result;
}

StateDict as_asked(StateDict state, const StateDictOptions& options) {
  const at::NoGradGuard no_grad;
  if (options.full_state_dict) {
    return full_state(state, options.cpu_offload);
  }
  return options.cpu_offload ? offloaded(state) : std::move(state);
}

// ---- optimizers -------------------------------------------------------------

StateDict state_of_optimizer(
    const Module& module,
    Optimizer& optimizer,
    const std::optional<DeviceMesh>& mesh,
    const StateDict* to_be_loaded) {
  auto* own = dynamic_cast<dtensor::ShardedStateOptimizer*>(&optimizer);
  return own ? own->state_dict(module, to_be_loaded)
             : dtensor::optimizer_state_dict(
                   optimizer,
                   module,
                   mesh ? *mesh : DeviceMesh(),
                   to_be_loaded);
}

/// Returns a tensor that shares memory with `tensor`.
at::Tensor placed(
    const at::Tensor& tensor,
    const std::optional<DeviceMesh>& mesh) {
  if (mesh) {
    return dtensor::on_mesh(tensor, *mesh);
  }
  return mesh_of(tensor) ? tensor : without_mesh(tensor);
}

/// See optimizer_state_dict() for `to_be_loaded`, which may be null.
std::vector<StateDict> states_of_optimizers(
    const Module& module,
    const Optimizers& optimizers,
    const std::optional<DeviceMesh>& mesh,
    const char* op,
    const StateDict* to_be_loaded) {
  TORCH_CHECK_VALUE(!optimizers.empty(), "[", op, "] no optimizer was given.");
  std::vector<StateDict> states;
  for (auto* optimizer : optimizers) {
    TORCH_CHECK_VALUE(optimizer, "[", op, "] an optimizer is a null pointer.");
    states.push_back(
        state_of_optimizer(module, *optimizer, mesh, to_be_loaded));
  }
  return states;
}

StateDict joined(
    const std::vector<StateDict>& states,
    const std::optional<DeviceMesh>& mesh,
    const char* op) {
  StateDict result;
  for (const auto& state : states) {
    for (const auto& [key, tensor] : state) {
      TORCH_CHECK_VALUE(
          result.emplace(key, placed(tensor, mesh)).second,
          "[",
          op,
          "] two optimizers have a ",
          in_quotes(key),
          ". Give each parameter to one optimizer.");
    }
  }
  return result;
}

void load_optimizer(
    const Module& module,
    Optimizer& optimizer,
    const StateDict& state) {
  if (auto* own = dynamic_cast<dtensor::ShardedStateOptimizer*>(&optimizer)) {
    own->load_state_dict(module, state);
  } else {
    dtensor::load_optimizer_state_dict(optimizer, module, state);
  }
}

FillOptions fill_options(
    const char* op,
    const StateDictOptions& options,
    const std::optional<DeviceMesh>& mesh) {
  TORCH_CHECK_VALUE(
      options.full_state_dict || !options.broadcast_from_rank0,
      "[",
      op,
      "] broadcast_from_rank0 sends full tensors: also set full_state_dict.");
  TORCH_CHECK_VALUE(
      mesh || !options.broadcast_from_rank0,
      "[",
      op,
      "] broadcast_from_rank0: no tensor is on a mesh, so the other ranks are "
      "unknown. Pass StateDictOptions.mesh.");
  return {
      .op = op,
      .strict = options.strict,
      .from_rank0 = options.broadcast_from_rank0,
      .mesh = mesh};
}

} // namespace

StateDict get_model_state_dict(
    const Module& module,
    const StateDictOptions& options,
    const Submodules& submodules) {
  auto state = without(
      model_state(module, options, find_mesh(module, options)),
      left_out(module, options));
  if (!submodules.empty()) {
    state = of_submodules(
        module, state, submodules, options.keep_submodule_prefixes);
  }
  return as_asked(std::move(state), options);
}

StateDict get_optimizer_state_dict(
    const Module& module,
    const Optimizers& optimizers,
    const StateDictOptions& options) {
  const auto mesh = find_mesh(module, options);
  const auto states =
      states_of_optimizers(module, optimizers, mesh, kGetOptimizer, nullptr);
  return as_asked(joined(states, mesh, kGetOptimizer), options);
}

std::pair<StateDict, StateDict> get_state_dict(
    const Module& module,
    const Optimizers& optimizers,
    const StateDictOptions& options) {
  auto model = get_model_state_dict(module, options);
  return {
      std::move(model), get_optimizer_state_dict(module, optimizers, options)};
}

IncompatibleKeys set_model_state_dict(
    Module& module,
    const StateDict& state,
    const StateDictOptions& options) {
  const auto mesh = find_mesh(module, options);
  const auto ignored = left_out(module, options);
  auto keys = fill_state(
      without(model_state(module, options, mesh), ignored),
      without(state, ignored),
      fill_options(kSetModel, options, mesh));
  for_each_persistent(module, options, [](const auto&, const auto& tensor) {
    if (dtensor::is_dtensor(tensor)) {
      // The local tensor was written without autograd, so the version counter
      // is increased here.
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  });
  return keys;
}

IncompatibleKeys set_optimizer_state_dict(
    Module& module,
    const Optimizers& optimizers,
    const StateDict& state,
    const StateDictOptions& options) {
  auto mesh = find_mesh(module, options);
  // With broadcast_from_rank0, only rank 0 has a state, so the other ranks
  // cannot derive from it which optimizer states to create.
  const auto states = states_of_optimizers(
      module,
      optimizers,
      mesh,
      kSetOptimizer,
      options.broadcast_from_rank0 ? nullptr : &state);
  const auto targets = joined(states, mesh, kSetOptimizer);
  for (const auto& [key, tensor] : targets) {
    mesh = mesh ? mesh : mesh_of(tensor);
  }
  auto keys =
      fill_state(targets, state, fill_options(kSetOptimizer, options, mesh));
  for (size_t i = 0; i < optimizers.size(); ++i) {
    load_optimizer(module, *optimizers[i], states[i]);
  }
  return keys;
}

IncompatibleKeys set_state_dict(
    Module& module,
    const Optimizers& optimizers,
    const StateDict& model_state,
    const StateDict& optimizer_state,
    const StateDictOptions& options) {
  auto keys = set_model_state_dict(module, model_state, options);
  const auto more =
      set_optimizer_state_dict(module, optimizers, optimizer_state, options);
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(keys.missing_keys, more.missing_keys);
  append(keys.unexpected_keys, more.unexpected_keys);
  return keys;
}

} // namespace weft::checkpoint
