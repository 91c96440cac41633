#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "dtensor/nn/state_dict.h"
#include "models/kv_cache.h"

namespace weft::train {

/// A data-parallel model: each rank computes other samples of a batch.
/// Implementations differ in how they reduce gradients.
class DataParallelModel {
 public:
  virtual ~DataParallelModel() = default;

  /// Calls the model's forward(). In training, its backward() reduces the
  /// gradients over all ranks.
  /// Collective: all ranks of the model's mesh, also for backward().
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  /// Calls the model's forward_cached(). Collective: like forward().
  virtual at::Tensor forward_cached(
      const at::Tensor& tokens,
      models::KvCache& cache) = 0;

  /// While the result lives, backward() accumulates into local gradients, and
  /// the next backward() without it reduces the sums. With
  /// fsdp.accumulate=sharded the result is null, and each backward() reduces.
  virtual std::shared_ptr<void> no_sync() = 0;

  /// Performs the synchronization that the first forward() would otherwise
  /// begin with.
  /// Collective: all ranks of the model's mesh; blocks.
  virtual void synchronize_parameters() = 0;

  /// Registers a hook that reduces gradients over the replicas.
  /// Collective: all ranks of the model's mesh; blocks.
  virtual void register_comm_hook(
      std::shared_ptr<data_parallel::CommHook> hook) = 0;

  /// The memory for parameters that are gathered from other ranks.
  struct GatheredMemory {
    /// The peak number of bytes of unsharded parameters.
    int64_t unsharded = 0;
    /// The peak number of bytes of messages.
    int64_t messages = 0;
    /// The number of bytes that are currently allocated for both.
    int64_t held = 0;
  };
  /// Returns that memory. All members are 0 if each rank has the full model.
  virtual GatheredMemory gathered_memory() const { return {}; }

  /// Returns the parameters and buffers on the full mesh without the names in
  /// `ignore`. The result shares the model's memory.
  virtual dtensor::StateDict state_dict(
      const std::set<std::string>& ignore) const = 0;
  /// See dtensor/nn/optimizer_state.h.
  virtual dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const = 0;
  virtual void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const = 0;
};

} // namespace weft::train
