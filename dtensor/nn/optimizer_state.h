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

/// An optimizer that writes its own state_dict because its state is sharded
/// over ranks.
class ShardedStateOptimizer {
 public:
  virtual ~ShardedStateOptimizer() = default;
  /// Like optimizer_state_dict().
  /// Collective: depends on the optimizer.
  virtual StateDict state_dict(
      const torch::nn::Module& module,
      const StateDict* to_be_loaded) = 0;
  /// Like load_optimizer_state_dict().
  virtual void load_state_dict(
      const torch::nn::Module& module,
      const StateDict& state) = 0;
};

/// Returns true if an optimizer has state for a parameter. `state` may be null.
bool has_optimizer_state(const torch::optim::OptimizerParamState* state);

/// Returns the optimizer's state of each parameter of `module`, keyed by the
/// parameter's name instead of an index: "state.wq.exp_avg", "state.wq.step",
/// "param_groups.wq.lr", ... Moments are DTensors on
/// `mesh` with the placements of their parameter, and share the optimizer's
/// memory; moments that the first step would create are created. Numbers are
/// new tensors: see load_optimizer_state_dict(). A frozen parameter has the
/// state from before it was frozen; none is created for it, unless
/// `to_be_loaded`, if given, has state for it.
/// Throws: c10::NotImplementedError for optimizers other than Adam, AdamW, SGD,
/// Adagrad and RMSprop (and classes derived from them or using their options),
/// and for SGD with dampening before it has a momentum.
/// Source: torch.distributed.checkpoint.state_dict.get_optimizer_state_dict
/// with flatten_optimizer_state_dict.
StateDict optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const StateDict* to_be_loaded = nullptr);

/// Returns the options of each parameter group, one line per option: "group 0
/// lr 0.01". Not collective. Optimizers that optimizer_state_dict() does not
/// support have no lines.
std::string describe_options(const torch::optim::Optimizer& optimizer);

/// Checks that `state` has the same learning rate, betas, ... for all
/// parameters of each group. `groups` has the parameters' names and the index
/// of their group.
/// Throws: c10::ValueError naming two parameters and both numbers.
/// Source: torch/distributed/checkpoint/state_dict.py,
/// _unflatten_optim_state_dict.
void check_numbers_of_groups(
    const std::vector<std::pair<std::string, size_t>>& groups,
    const StateDict& state);

/// Returns true if `state` has an entry for the parameter `fqn`.
bool holds_state(const StateDict& state, const std::string& fqn);

/// Loads numbers, and those moments that do not share the optimizer's memory,
/// including those of frozen parameters. (A checkpoint that is read into an
/// optimizer_state_dict() must have its keys: read it before freezing
/// parameters.)
/// Throws: c10::ValueError naming a key that is missing or a tensor that does
/// not match, or if check_numbers_of_groups() does.
void load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const torch::nn::Module& module,
    const StateDict& state);

} // namespace weft::dtensor
