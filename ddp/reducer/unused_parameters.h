#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data_parallel/parameters/module_state.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::ddp {

/// Finds the parameters on which the outputs of a forward do not depend, from
/// autograd's graph. Uses in a nested backward (re-entrant checkpointing) are
/// not yet in a graph and count as unused.
/// Source: torch/csrc/distributed/c10d/reducer.cpp, search_unused_parameters.
class UnusedParameters {
 public:
  /// `parameters` are leaves that require gradients.
  explicit UnusedParameters(const std::vector<at::Tensor>& parameters);
  UnusedParameters(const UnusedParameters&) = delete;
  UnusedParameters& operator=(const UnusedParameters&) = delete;
  ~UnusedParameters();

  /// Returns the indices of the parameters on which no output depends, in
  /// order. Outputs may be undefined, without a graph, DTensors, or parameters.
  /// Visits each node of the graph once and stops when all parameters are
  /// found.
  std::vector<size_t> find(const std::vector<at::Tensor>& outputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs UnusedParameters::find() once.
std::vector<size_t> find_unused(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& parameters);

/// How one backward used the parameters of a model.
struct GradientUse {
  /// The caller's iteration number.
  int64_t iteration = 0;
  /// The indices of the parameters without a gradient.
  std::vector<size_t> without_gradient = {};
  /// The subset on which no output depends. Empty optional if the graph was not
  /// searched.
  std::optional<std::vector<size_t>> not_in_graph = std::nullopt;
  /// The last iteration in which each parameter got a gradient.
  std::vector<std::optional<int64_t>> last_gradient = {};
};

/// Describes which of `parameters` got no gradient and why, by module; "" if
/// all got one:
///
///   2 of 6 parameters got no gradient in iteration 7
///     layers.1.gate (Linear)
///       weight [8, 6]: no output depends on it; last gradient: iteration 5
///       bias [8]: no output depends on it; last gradient: never
///     embedding (Embedding), head (Linear): tied
///       weight [32, 8]: an output depends on it, the loss does not; last ...
///
/// Modules and parameters are in the order of `parameters`.
std::string describe_unused(
    const torch::nn::Module& module,
    const std::vector<data_parallel::NamedTensor>& parameters,
    const GradientUse& use);

} // namespace weft::ddp
