#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "dtensor/nn/state_dict.h"

namespace weft::recipes {

/// A model whose ranks compute different samples of a batch, whatever way their
/// gradients come together.
class DataParallelModel {
 public:
  virtual ~DataParallelModel() = default;

  /// The model's forward(). In training its backward() brings the gradients of
  /// all ranks together.
  /// Collective: all ranks of the model's mesh; likewise backward().
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  /// While the result lives, a backward() adds to each rank's own gradients,
  /// and the next one without it brings the sums together.
  virtual std::shared_ptr<void> no_sync() = 0;

  /// What the first forward() would do before anything else.
  /// Collective: all ranks of the model's mesh; blocks.
  virtual void synchronize_parameters() = 0;

  /// Of other ranks' parameters.
  struct GatheredMemory {
    /// The most bytes of unsharded parameters at once.
    int64_t unsharded = 0;
    /// The most bytes of messages at once.
    int64_t messages = 0;
    /// Bytes that are kept for both now.
    int64_t held = 0;
  };
  /// Of none where each rank has the whole model.
  virtual GatheredMemory gathered_memory() const { return {}; }

  /// Parameters and buffers on the whole mesh, which share the model's memory;
  /// without the names in `ignore`.
  virtual dtensor::StateDict state_dict(
      const std::set<std::string>& ignore) const = 0;
  /// See dtensor/nn/optimizer_state.h.
  virtual dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const = 0;
  virtual void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const = 0;
};

} // namespace weft::recipes
