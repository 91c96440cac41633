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

/// While one lives, this thread's factory functions (empty, zeros, randn, ...)
/// return DTensors that remember how they are initialised and hold memory that
/// is reserved but not committed. A model built inside has parameters that no
/// rank has in full: tp::parallelize_module() says where they go and
/// materialize() computes each rank's part alone.
/// Source: libtorch's DispatchKey::DeferredInit; pytorch/torchdistx.
class DeferredInit {
 public:
  DeferredInit();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

/// Gives every deferred parameter and buffer of `module` its values: this
/// rank's part under its placement, the same on every mesh for one seed.
/// Random streams are keyed by (seed, the tensor's name in the module). Values
/// are computed on `device`, and those that exist already are moved there; by
/// default on this rank's device in the world of the module's mesh, or the CPU
/// where nothing lies on a mesh.
/// Collective: none; every rank computes alone.
void materialize(
    torch::nn::Module& module,
    uint64_t seed,
    std::optional<c10::Device> device = std::nullopt);
/// The same for one tensor; `name` keys its random stream.
void materialize_tensor(
    const at::Tensor& tensor,
    uint64_t seed,
    const std::string& name,
    std::optional<c10::Device> device = std::nullopt);

/// Where a deferred or unplaced tensor is to lie; its values follow at once if
/// it has them, at materialize() otherwise.
/// Throws: c10::ValueError if the tensor lies on another mesh already.
void set_placements(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements);

/// Handles an op on deferred tensors: records it if it initialises one.
/// Returns whether it did all there is to do. Throws for an op that reads
/// values that do not exist yet.
bool run_deferred(const OpCall& call, torch::jit::Stack& stack);

/// The kernel behind DeferredInit.
void register_deferred_init(torch::Library& library);

} // namespace weft::dtensor
