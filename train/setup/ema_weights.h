#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::recipes {

/// A running average of the parameters that a module trains, in float32 and
/// lying as they do: each rank averages its own part, without communication.
/// Source: Polyak and Juditsky (1992); the exponential form of
/// torch.optim.swa_utils.get_ema_multi_avg_fn.
class EmaWeights {
 public:
  /// Begins nothing yet. `decay` is in [0, 1).
  /// Lifetime: holds on to the parameters.
  EmaWeights(const torch::nn::Module& module, double decay);

  /// The average becomes the weights, unless it has begun: before the first
  /// step, or where state_dict() was not loaded into.
  void begin();
  bool has_begun() const { return !entries_.empty(); }
  /// It has not begun, whatever was.
  void forget() { entries_.clear(); }
  /// After a step: average = decay x average + (1 - decay) x weights.
  void update();

  /// By the parameters' names, on `mesh`; shares memory. Begins.
  dtensor::StateDict state_dict(const mesh::DeviceMesh& mesh);

  /// Weights and average change places; a second time they change back, to the
  /// bit.
  void swap();

 private:
  struct Entry {
    /// Tied parameters have several.
    std::vector<std::string> names;
    at::Tensor parameter;
    at::Tensor average;
  };

  double decay_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<Entry> entries_;
};

} // namespace weft::recipes
