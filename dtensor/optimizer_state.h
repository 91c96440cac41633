#pragma once

#include "dtensor/state_dict.h"

namespace torch::optim {
class Optimizer;
} // namespace torch::optim

namespace weft::dtensor {

/// An optimizer that says itself what it knows of each parameter, as one must
/// whose state is divided over ranks.
class OptimizerWithState {
 public:
  virtual ~OptimizerWithState() = default;
  /// As optimizer_state_dict().
  /// Collective: as the optimizer says.
  virtual StateDict state_dict(const torch::nn::Module& module) = 0;
  /// As load_optimizer_state_dict().
  virtual void load_state_dict(
      const torch::nn::Module& module,
      const StateDict& state) = 0;
};

/// What `optimizer` knows of each parameter of `module`, by the parameter's
/// name instead of an index: `state.<fqn>.exp_avg`, `state.<fqn>.step`,
/// `param_groups.<fqn>.lr`, ... Moments are DTensors on `mesh`, placed like
/// their parameter, and share the optimizer's memory; those that its first
/// step would make are made now. Numbers are tensors of their own: see
/// load_optimizer_state_dict(). Frozen parameters have no state.
/// Throws: c10::NotImplementedError for optimizers other than Adam, AdamW,
/// SGD, Adagrad and RMSprop (and classes derived from them or using their
/// options).
/// Source: torch.distributed.checkpoint.state_dict.get_optimizer_state_dict
/// with flatten_optimizer_state_dict.
StateDict optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh);

/// The way back: takes over numbers, and moments that do not share the
/// optimizer's memory.
/// Throws: c10::ValueError naming a key that is missing or a tensor that does
/// not fit.
void load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const StateDict& state);

} // namespace weft::dtensor
