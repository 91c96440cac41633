#pragma once

#include <functional>

#include <torch/optim/optimizer.h>

#include "data_parallel/join/joinable.h"
#include "fsdp/fully_sharded_data_parallel.h"

namespace weft::fsdp {

/// The optimizer step of a Join with a FullyShardedDataParallel: ranks that run
/// out of inputs still hold a shard of the parameters, and step whenever the
/// others do.
class JoinableOptimizer : public data_parallel::Joinable {
 public:
  /// Ranks without inputs call optimizer.step() and zero_grad().
  /// Lifetime: both arguments must outlive this object.
  JoinableOptimizer(
      torch::optim::Optimizer& optimizer,
      FullyShardedDataParallelBase& model);
  /// Ranks without inputs call `step` instead, e.g. to clip gradients or to
  /// change the learning rate as in the loop over inputs. It must zero the
  /// gradients.
  JoinableOptimizer(
      std::function<void()> step,
      FullyShardedDataParallelBase& model);

  /// Throws: c10::ValueError unless the model is in the Join, before this
  /// object.
  std::shared_ptr<data_parallel::JoinHook> join_hook(
      const data_parallel::JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;

 private:
  std::function<void()> step_;
  FullyShardedDataParallelBase& model_;
};

} // namespace weft::fsdp
