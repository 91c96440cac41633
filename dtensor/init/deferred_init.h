#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtensor/rules/rule.h"
#include "dtensor/tensor/deferred_state.h"

namespace torch {
class Library;
namespace nn {
class Module;
} // namespace nn
} // namespace torch

namespace weft::dtensor {

/// Scope in which this thread's factory functions (empty, zeros, randn, ...)
/// return DTensors that record their initialization, with reserved but
/// uncommitted memory. No rank holds the full parameters of a model built in
/// it: tp::parallelize_module() sets the placements, and materialize() computes
/// each rank's part.
/// Source: libtorch's DispatchKey::DeferredInit; pytorch/torchdistx.
class DeferredInit {
 public:
  DeferredInit();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Initializes every deferred parameter and buffer of `module`: this rank's
/// part under its placement, identical on every mesh for one seed. Random
/// streams are keyed by the seed and the tensor's name in the module. Values
/// are computed on `device`, and existing values are moved there. The default
/// is this rank's device in the world of the module's mesh, or the CPU if
/// nothing is on a mesh.
/// Collective: none; each rank computes on its own.
void materialize(
    torch::nn::Module& module,
    uint64_t seed,
    std::optional<c10::Device> device = std::nullopt);
/// Like materialize(), for one tensor. `name` is the key of its random stream.
void materialize_tensor(
    const at::Tensor& tensor,
    uint64_t seed,
    const std::string& name,
    std::optional<c10::Device> device = std::nullopt);

/// Sets the placements of a deferred or unplaced tensor. Existing values are
/// distributed at once, others at materialize().
/// Throws: c10::ValueError if the tensor is already on another mesh.
void set_placements(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements);

/// Handles an op on deferred tensors: records it if it initializes one. Returns
/// true if nothing is left to do. Throws for an op that reads values that do
/// not exist yet.
bool run_deferred(const OpCall& call, torch::jit::Stack& stack);

/// Registers the kernel of DeferredInit.
void register_deferred_init(torch::Library& library);

} // namespace weft::dtensor
