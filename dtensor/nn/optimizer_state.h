#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/nn/state_dict.h"

namespace torch::optim {
class Optimizer;
class OptimizerParamState;
} // namespace torch::optim

namespace weft::dtensor {

/// An optimizer that says itself what it knows of each parameter, as one must
/// whose state is divided over ranks.
class ShardedStateOptimizer {
 public:
  virtual ~ShardedStateOptimizer() = default;
  /// As optimizer_state_dict().
  /// Collective: as the optimizer says.
  virtual StateDict state_dict(
      const torch::nn::Module& module,
      const StateDict* to_be_loaded) = 0;
  /// As load_optimizer_state_dict().
  virtual void load_state_dict(
      const torch::nn::Module& module,
      const StateDict& state) = 0;
};

/// Whether an optimizer has learned something of a parameter; `state` may be
/// null.
bool has_optimizer_state(const torch::optim::OptimizerParamState* state);

/// What `optimizer` knows of each parameter of `module`, by the parameter's
/// name instead of an index: `state.<fqn>.exp_avg`, `state.<fqn>.step`,
/// `param_groups.<fqn>.lr`, ... Moments are DTensors on `mesh`, placed like
/// their parameter, and share the optimizer's memory; those that its first
/// step would make are made now. Numbers are tensors of their own: see
/// load_optimizer_state_dict(). A frozen parameter has what the optimizer knew
/// of it before it was frozen, and nothing is made for it, unless
/// `to_be_loaded`, if given, has a state of it.
/// Throws: c10::NotImplementedError for optimizers other than Adam, AdamW,
/// SGD, Adagrad and RMSprop (and classes derived from them or using their
/// options), and for SGD with dampening before it has a momentum.
/// Source: torch.distributed.checkpoint.state_dict.get_optimizer_state_dict
/// with flatten_optimizer_state_dict.
StateDict optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const StateDict* to_be_loaded = nullptr);

/// Throws: c10::ValueError, naming two parameters and both numbers, if `state`
/// has different learning rates, betas, ... for parameters that are in one
/// group of an optimizer, which has one of each. `groups`: the parameters'
/// names, and which group each is in.
/// Source: torch/distributed/checkpoint/state_dict.py,
/// _unflatten_optim_state_dict.
void check_numbers_of_groups(
    const std::vector<std::pair<std::string, size_t>>& groups,
    const StateDict& state);

/// Whether `state` has something of the parameter `fqn`.
bool holds_state(const StateDict& state, const std::string& fqn);

/// The way back: takes over numbers, and moments that do not share the
/// optimizer's memory, those of frozen parameters, too. (What is read into an
/// optimizer_state_dict() has the keys that this had before: read a checkpoint
/// before parameters are frozen.)
/// Throws: c10::ValueError naming a key that is missing or a tensor that does
/// not fit; as check_numbers_of_groups().
void load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const StateDict& state);

} // namespace weft::dtensor
