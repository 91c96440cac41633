#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn
namespace torch::optim {
class Optimizer;
} // namespace torch::optim

namespace weft::checkpoint {

/// The options of get_state_dict() and set_state_dict(). There is no
/// flatten_optimizer_state_dict: a StateDict is flat.
/// Source: torch.distributed.checkpoint.state_dict.StateDictOptions.
struct StateDictOptions {
  /// Returns full plain tensors instead of DTensors.
  bool full_state_dict = false;
  /// Returns tensors on the CPU. With full_state_dict only rank 0 gets the
  /// tensors and the other ranks get none, so that a host holds them once.
  bool cpu_offload = false;
  /// Omits parameters that do not require a gradient from the model's part.
  bool ignore_frozen_params = false;
  /// Keeps the full names of submodules' tensors: "encoder.layer.weight", not
  /// "layer.weight".
  bool keep_submodule_prefixes = true;
  /// Setting rejects missing and unexpected tensors.
  bool strict = true;
  /// Setting takes full tensors from rank 0 and broadcasts them. The StateDicts
  /// of the other ranks are ignored. Requires full_state_dict.
  bool broadcast_from_rank0 = false;
  /// The names of buffers that are computed rather than learned (PyTorch's
  /// non-persistent buffers). They are neither returned nor set.
  std::set<std::string> ignore = {};
  /// The mesh of all ranks. The default is the root of the mesh of the module's
  /// DTensors. Without either, the module belongs to this rank alone, and its
  /// tensors stay plain.
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
};

/// The keys that set_state_dict() found on one side only.
struct IncompatibleKeys {
  /// The names of the model that the state lacks.
  std::vector<std::string> missing_keys;
  /// The names of the state that the model lacks.
  std::vector<std::string> unexpected_keys;
};

/// The modules whose part of the state is meant. Empty means the whole model.
using Submodules = std::vector<const torch::nn::Module*>;
/// The optimizers of one model. Each parameter belongs to at most one.
using Optimizers = std::vector<torch::optim::Optimizer*>;

/// Returns parameters and buffers by name, as checkpoint::save() takes them:
/// DTensors on the mesh that share the module's memory. With full_state_dict or
/// cpu_offload they are copies. If `submodules` is not empty, returns only
/// their tensors.
/// Collective: with full_state_dict all ranks of the mesh; blocks.
/// Throws: c10::ValueError if a submodule is not part of the module, or if two
/// tensors get the same name without prefixes.
dtensor::StateDict get_model_state_dict(
    const torch::nn::Module& module,
    const StateDictOptions& options = {},
    const Submodules& submodules = {});

/// Returns the optimizers' state of the module's parameters, by name:
/// "state.wq.exp_avg", "param_groups.wq.lr", ...; see
/// dtensor/nn/optimizer_state.h. State that an optimizer has not created yet is
/// created now, as its first step would. Numbers are copies.
/// Collective: all ranks of the mesh with full_state_dict, or if an optimizer's
/// state is sharded over ranks; blocks.
/// Throws: like dtensor::optimizer_state_dict(); c10::ValueError if two
/// optimizers share a parameter, or if there is no optimizer.
dtensor::StateDict get_optimizer_state_dict(
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    const StateDictOptions& options = {});

/// Returns the state of the model and of the optimizers.
/// Collective: like get_model_state_dict() and get_optimizer_state_dict().
std::pair<dtensor::StateDict, dtensor::StateDict> get_state_dict(
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    const StateDictOptions& options = {});

/// Copies values to the module's parameters and buffers, and converts their
/// dtype like Tensor::copy_(). The tensors may be DTensors with any placements,
/// or full plain tensors that are identical on all ranks.
/// Collective: all ranks of the mesh, with tensors of identical names, sizes
/// and placements; blocks.
/// Throws: c10::ValueError, before anything changes and on all ranks, if
/// tensors are missing or unexpected (with strict) or have another shape (all
/// are listed), or if a tensor is not full where it must be;
/// mesh::DisagreementError if the ranks' arguments differ.
IncompatibleKeys set_model_state_dict(
    torch::nn::Module& module,
    const dtensor::StateDict& state,
    const StateDictOptions& options = {});

/// Like set_model_state_dict(), for optimizers. Without `strict`, missing state
/// keeps its values. Must be called before backward() or after step().
IncompatibleKeys set_optimizer_state_dict(
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const dtensor::StateDict& state,
    const StateDictOptions& options = {});

/// Sets both the model's and the optimizers' state. The result lists the
/// model's keys first.
IncompatibleKeys set_state_dict(
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const dtensor::StateDict& model_state,
    const dtensor::StateDict& optimizer_state,
    const StateDictOptions& options = {});

} // namespace weft::checkpoint
