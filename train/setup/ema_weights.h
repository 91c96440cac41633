#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::train {

/// The EMA of the trainable parameters of a module, in float32 and with their
/// placements. Each rank averages its own shards without communication.
/// Source: Polyak and Juditsky (1992); the exponential form of
/// torch.optim.swa_utils.get_ema_multi_avg_fn.
class EmaWeights {
 public:
  /// Creates an EMA that has not begun. `decay` is in [0, 1).
  /// Lifetime: keeps the parameters alive.
  EmaWeights(const torch::nn::Module& module, double decay);

  /// Sets the EMA to the weights if it has not begun. To be called before the
  /// first step; after a resume that loaded state_dict() it does nothing.
  void begin();
  bool has_begun() const { return !entries_.empty(); }
  /// Resets the EMA to its state before begin().
  void forget() { entries_.clear(); }
  /// Updates the EMA after a step: average = decay x average + (1 - decay) x
  /// weights.
  void update();

  /// Returns the EMA by parameter name, on `mesh`. The result shares memory.
  /// Calls begin().
  dtensor::StateDict state_dict(const mesh::DeviceMesh& mesh);

  /// Swaps the weights and the EMA. A second call restores both bitwise.
  void swap();

 private:
  struct Entry {
    /// The names of the parameter. Tied parameters have several.
    std::vector<std::string> names;
    at::Tensor parameter;
    at::Tensor average;
  };

  double decay_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<Entry> entries_;
};

} // namespace weft::train
