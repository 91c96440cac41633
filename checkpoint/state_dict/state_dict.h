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

/// What get_state_dict() returns and set_state_dict() takes.
/// Source: torch.distributed.checkpoint.state_dict.StateDictOptions. There is
/// no flatten_optimizer_state_dict: a StateDict is flat.
struct StateDictOptions {
  /// Plain tensors with all values instead of DTensors.
  bool full_state_dict = false;
  /// On the CPU. With full_state_dict rank 0 gets the tensors, and the others
  /// nothing, so that a host holds them once.
  bool cpu_offload = false;
  /// Leave parameters out that do not require a gradient, of the model's part.
  bool ignore_frozen_params = false;
  /// Of submodules: "encoder.layer.weight", not "layer.weight".
  bool keep_submodule_prefixes = true;
  /// Setting refuses missing and unexpected tensors.
  bool strict = true;
  /// Setting takes whole tensors of rank 0 and sends them to the others, whose
  /// StateDicts are not looked at. Needs full_state_dict.
  bool broadcast_from_rank0 = false;
  /// Buffers that are computed and not learned: what PyTorch calls not
  /// persistent. Never got nor set.
  std::set<std::string> ignore = {};
  /// Of all ranks. None: the root of the mesh that the module's DTensors lie
  /// on; a module without any then belongs to this rank alone, and its tensors
  /// stay plain.
  std::optional<mesh::DeviceMesh> mesh = std::nullopt;
};

/// What a set found on one side only.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;
  std::vector<std::string> unexpected_keys;
};

using Submodules = std::vector<const torch::nn::Module*>;
using Optimizers = std::vector<torch::optim::Optimizer*>;

/// Parameters and buffers by name, as checkpoint::save() takes them: DTensors
/// on the mesh that share the module's memory. With full_state_dict or
/// cpu_offload they are copies. `submodules`: only what belongs to those.
/// Collective: with full_state_dict all ranks of the mesh; blocks.
/// Throws: c10::ValueError for a submodule that is none, and if without
/// prefixes two tensors get one name.
dtensor::StateDict get_model_state_dict(
    const torch::nn::Module& module,
    const StateDictOptions& options = {},
    const Submodules& submodules = {});

/// What the optimizers know of the module's parameters, by name:
/// `state.<fqn>.exp_avg`, `param_groups.<fqn>.lr`, ...; see
/// dtensor/nn/optimizer_state.h. State that an optimizer has not made yet is
/// made now, as its first step would. Numbers are copies. Collective: all ranks
/// of the mesh with full_state_dict, or where an optimizer's state is divided
/// over ranks; blocks. Throws: as dtensor::optimizer_state_dict();
/// c10::ValueError if two optimizers have a parameter in common, or there is
/// none.
dtensor::StateDict get_optimizer_state_dict(
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    const StateDictOptions& options = {});

/// The model's and the optimizers'.
/// Collective: as both.
std::pair<dtensor::StateDict, dtensor::StateDict> get_state_dict(
    const torch::nn::Module& module,
    const Optimizers& optimizers,
    const StateDictOptions& options = {});

/// Copies values into the module's parameters and buffers, and converts their
/// dtype as Tensor::copy_() does. Tensors may be DTensors, placed anyhow, or
/// plain ones of the whole's sizes, which every rank has alike.
/// Collective: all ranks of the mesh, tensors of the same names, sizes and
/// placements; blocks.
/// Throws: c10::ValueError, before anything changes and on all ranks, that
/// lists all tensors which are missing or unexpected (if strict) or have
/// another shape; if a tensor is not whole where it must be;
/// mesh::DisagreementError if ranks differ in what they give.
IncompatibleKeys set_model_state_dict(
    torch::nn::Module& module,
    const dtensor::StateDict& state,
    const StateDictOptions& options = {});

/// The same for optimizers. Without `strict` state that is missing stays as it
/// is. To be called before backward() or after step().
IncompatibleKeys set_optimizer_state_dict(
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const dtensor::StateDict& state,
    const StateDictOptions& options = {});

/// Both; what the model's part lacks or has too much is in the result first.
IncompatibleKeys set_state_dict(
    torch::nn::Module& module,
    const Optimizers& optimizers,
    const dtensor::StateDict& model_state,
    const dtensor::StateDict& optimizer_state,
    const StateDictOptions& options = {});

} // namespace weft::checkpoint
