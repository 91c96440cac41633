#include "dtensor/nn/distribute_module.h"

#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/gradient.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"

namespace weft::dtensor {
namespace {

using torch::nn::Module;

// parameters_ is protected; a member pointer named through a derived class may
// be applied to any module.
struct Tables : Module {
  static auto& parameters(Module& module) {
    return module.*(&Tables::parameters_);
  }
};

// buffers_ is private, and no function replaces a buffer. Access is not checked
// for the arguments of an explicit instantiation.
template <auto Member>
struct PrivateMember {
  friend auto& buffers_of(Module& module) { return module.*Member; }
};
auto& buffers_of(Module& module);
template struct PrivateMember<&Module::buffers_>;

// Recurrent modules read a flat list of their parameters, which the protected
// reset_flat_weights() rebuilds.
template <class Impl>
struct FlatWeights : torch::nn::detail::RNNImplBase<Impl> {
  static void reset(Impl& impl) {
    (impl.*(&FlatWeights::reset_flat_weights))();
  }
};

bool reset_flat_weights(Module& module) {
  const auto reset = [&]<class Impl>(Impl* impl) {
    if (impl) {
      FlatWeights<Impl>::reset(*impl);
    }
    return impl != nullptr;
  };
  return reset(module.as<torch::nn::LSTMImpl>()) ||
         reset(module.as<torch::nn::GRUImpl>()) ||
         reset(module.as<torch::nn::RNNImpl>());
}

template <class Impl>
at::Tensor* own_member(Impl& impl, std::string_view name) {
  at::Tensor* found = nullptr;
  const auto match = [&](std::string_view candidate, at::Tensor& member) {
    found = name == candidate ? &member : found;
  };
  if constexpr (requires { impl.weight; }) {
    match("weight", impl.weight);
  }
  if constexpr (requires { impl.bias; }) {
    match("bias", impl.bias);
  }
  if constexpr (requires { impl.running_mean; }) {
    match("running_mean", impl.running_mean);
    match("running_var", impl.running_var);
    match("num_batches_tracked", impl.num_batches_tracked);
  }
  if constexpr (requires { impl.weight_ih; }) {
    match("weight_ih", impl.weight_ih);
    match("weight_hh", impl.weight_hh);
    match("bias_ih", impl.bias_ih);
    match("bias_hh", impl.bias_hh);
  }
  if constexpr (requires { impl.in_proj_weight; }) {
    match("in_proj_weight", impl.in_proj_weight);
    match("in_proj_bias", impl.in_proj_bias);
    match("q_proj_weight", impl.q_proj_weight);
    match("k_proj_weight", impl.k_proj_weight);
    match("v_proj_weight", impl.v_proj_weight);
    match("bias_k", impl.bias_k);
    match("bias_v", impl.bias_v);
  }
  return found;
}

template <class... Impls>
at::Tensor* member_of_one(Module& module, std::string_view name) {
  at::Tensor* found = nullptr;
  const auto look = [&](auto* impl) {
    if (impl && !found) {
      found = own_member(*impl, name);
    }
  };
  (look(module.as<Impls>()), ...);
  return found;
}

// Returns the member that forward() reads, or null for types whose members are
// not known.
at::Tensor* known_member(Module& module, std::string_view name) {
  using namespace torch::nn;
  return member_of_one<
      LinearImpl,
      BilinearImpl,
      EmbeddingImpl,
      EmbeddingBagImpl,
      LayerNormImpl,
      GroupNormImpl,
      BatchNorm1dImpl,
      BatchNorm2dImpl,
      BatchNorm3dImpl,
      InstanceNorm1dImpl,
      InstanceNorm2dImpl,
      InstanceNorm3dImpl,
      Conv1dImpl,
      Conv2dImpl,
      Conv3dImpl,
      ConvTranspose1dImpl,
      ConvTranspose2dImpl,
      ConvTranspose3dImpl,
      PReLUImpl,
      MultiheadAttentionImpl,
      RNNCellImpl,
      LSTMCellImpl,
      GRUCellImpl>(module, name);
}

bool is_recurrent(Module& module) {
  return module.as<torch::nn::LSTMImpl>() || module.as<torch::nn::GRUImpl>() ||
         module.as<torch::nn::RNNImpl>();
}

bool can_replace(Module& module, std::string_view name) {
  return known_member(module, name) || is_recurrent(module);
}

std::string fqn_of(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

at::Tensor* find_tensor(Module& module, const std::string& name) {
  if (auto* parameter = Tables::parameters(module).find(name)) {
    return parameter;
  }
  return buffers_of(module).find(name);
}

at::Tensor replace_plain(
    Module& module,
    const std::string& name,
    at::Tensor& slot,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    std::optional<int64_t> src_data_rank) {
  auto distributed =
      distribute_tensor(slot.detach(), mesh, placements, src_data_rank);
  distributed.set_requires_grad(slot.requires_grad());
  slot = distributed;
  if (auto* member = known_member(module, name)) {
    *member = distributed;
  } else {
    reset_flat_weights(module);
  }
  return distributed;
}

void check_movable(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& fqn) {
  const auto* impl = dtensor_impl(tensor);
  const bool is_free = impl->spec().mesh_ndim() == 0 ||
                       (impl->deferred && impl->spec().mesh() == mesh);
  WEFT_CHECK(
      is_free || impl->spec() == DTensorSpec(mesh, placements),
      "distribute_parameter",
      mesh::ErrorContext{mesh.describe_rank()},
      "parameter \"",
      fqn,
      "\" already has placements: ",
      describe(tensor),
      ". Place a model only once.");
}

bool is_unplaced(const at::Tensor& tensor) {
  return !is_dtensor(tensor) || spec_of(tensor).mesh_ndim() == 0;
}

void name_parameters(Module& module) {
  for (const auto& item : module.named_parameters()) {
    auto& info = parameter_info(item.value());
    if (info.fqn.empty()) {
      info.fqn = item.key();
    }
  }
}

} // namespace

void check_distributable(
    Module& module,
    const std::string& name,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& path) {
  const auto fqn = fqn_of(path, name);
  const auto* slot = find_tensor(module, name);
  WEFT_CHECK(
      slot && slot->defined(),
      "distribute_parameter",
      mesh::ErrorContext{mesh.describe_rank()},
      "a ",
      module.name(),
      " has no parameter or buffer \"",
      fqn,
      "\" of its own.");
  if (is_dtensor(*slot)) {
    check_movable(*slot, mesh, normalized(placements, slot->dim()), fqn);
    return;
  }
  WEFT_CHECK(
      can_replace(module, name),
      "distribute_parameter",
      mesh::ErrorContext{mesh.describe_rank()},
      "parameter \"",
      fqn,
      "\" of a ",
      module.name(),
      " is a plain tensor, which cannot be replaced in an existing module. "
      "Build the model inside weft::dtensor::DeferredInit.");
}

at::Tensor distribute_parameter(
    Module& module,
    const std::string& name,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const std::string& path,
    std::optional<int64_t> src_data_rank) {
  check_distributable(module, name, mesh, placements, path);
  auto* slot = find_tensor(module, name);
  at::Tensor tensor = *slot;
  if (!is_dtensor(tensor)) {
    tensor =
        replace_plain(module, name, *slot, mesh, placements, src_data_rank);
  } else {
    set_placements(tensor, mesh, placements);
  }
  parameter_info(tensor).fqn = fqn_of(path, name);
  match_gradient_placement(tensor);
  return tensor;
}

void replicate_unplaced(
    Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> src_data_rank) {
  const Placements whole(mesh.ndim(), Replicate());
  for (const auto& item : module.named_modules()) {
    auto& owner = *item.value();
    for (const auto& parameter : owner.named_parameters(/*recurse=*/false)) {
      if (is_unplaced(parameter.value())) {
        distribute_parameter(
            owner, parameter.key(), mesh, whole, item.key(), src_data_rank);
      }
    }
    for (const auto& buffer : owner.named_buffers(/*recurse=*/false)) {
      const bool deferred = is_dtensor(buffer.value());
      if (is_unplaced(buffer.value()) &&
          (deferred || can_replace(owner, buffer.key()))) {
        distribute_parameter(
            owner, buffer.key(), mesh, whole, item.key(), src_data_rank);
      }
    }
  }
}

void distribute_module(
    Module& module,
    const mesh::DeviceMesh& mesh,
    const PartitionFn& partition_fn,
    const InputFn& input_fn,
    const OutputFn& output_fn) {
  if (input_fn || output_fn) {
    auto& hooks = module_hooks(module);
    WEFT_CHECK(
        !hooks.distributed,
        "distribute_module",
        mesh::ErrorContext{mesh.describe_rank()},
        "a ",
        module.name(),
        " already has an input_fn or output_fn from an earlier call. "
        "Distribute a module only once.");
    hooks.distributed = true;
    // The hooks live in the module, so the module outlives them.
    if (input_fn) {
      hooks.before.emplace_back(
          [&module, mesh, input_fn](std::vector<at::Tensor>& inputs) {
            inputs = input_fn(module, std::move(inputs), mesh);
          });
    }
    if (output_fn) {
      hooks.after.emplace_back(
          [&module, mesh, output_fn](const at::Tensor& output) {
            return output_fn(module, output, mesh);
          });
    }
  }
  if (partition_fn) {
    for (const auto& item : module.named_modules()) {
      if (!item.value()->as<ModuleHooks>()) {
        partition_fn(item.key(), *item.value(), mesh);
      }
    }
  }
  replicate_unplaced(module, mesh);
  name_parameters(module);
}

} // namespace weft::dtensor
