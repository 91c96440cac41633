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

/// Tells which parameters the outputs of a forward do not depend on, from the
/// graph that autograd recorded. What a nested backward (re-entrant
/// checkpointing) would use is in no graph yet and counts as unused.
/// Source: torch/csrc/distributed/c10d/reducer.cpp, search_unused_parameters.
class UnusedParameters {
 public:
  /// `parameters` are leaves that require gradients.
  explicit UnusedParameters(const std::vector<at::Tensor>& parameters);
  UnusedParameters(const UnusedParameters&) = delete;
  UnusedParameters& operator=(const UnusedParameters&) = delete;
  ~UnusedParameters();

  /// Places of the parameters that no output depends on, in order. Outputs may
  /// be undefined, without a graph, DTensors, or parameters themselves. Visits
  /// each node of the graph once, and stops once all parameters are found.
  std::vector<size_t> find(const std::vector<at::Tensor>& outputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// UnusedParameters::find() of a search that is used once.
std::vector<size_t> find_unused(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& parameters);

/// What one backward did with a model's parameters.
struct GradientUse {
  /// As counted by the caller.
  int64_t iteration = 0;
  /// Places of the parameters that got no gradient.
  std::vector<size_t> without_gradient = {};
  /// Those of them that no output depends on; none if the graph was not
  /// searched.
  std::optional<std::vector<size_t>> not_in_graph = std::nullopt;
  /// For each parameter the last iteration in which it got a gradient.
  std::vector<std::optional<int64_t>> last_gradient = {};
};

/// Says which of `parameters` got no gradient and why, by the modules that have
/// them; "" if all got one:
///
///   2 of 6 parameters got no gradient in iteration 7
///     layers.1.gate (Linear)
///       weight [8, 6]: no output depends on it; last gradient: iteration 5
///       bias [8]: no output depends on it; last gradient: never
///     embedding (Embedding), head (Linear): tied
///       weight [32, 8]: an output depends on it, the loss does not; last ...
///
/// Modules and parameters come in the order of `parameters`.
std::string describe_unused(
    const torch::nn::Module& module,
    const std::vector<NamedTensor>& parameters,
    const GradientUse& use);

} // namespace weft::ddp
