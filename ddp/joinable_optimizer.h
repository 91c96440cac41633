#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "data_parallel/join/joinable.h"
#include "ddp/distributed_data_parallel.h"

namespace weft::ddp {

/// An optimizer of the module that `ddp` wraps, in a Join together with it:
/// ranks that run out of inputs miss steps, and in the end get what the
/// optimizer keeps (momentum, numbers of steps, learning rates) of a rank that
/// missed none. Without it the next epoch's replicas would drift apart.
/// Optimizers that are applied in backward need none.
class JoinableOptimizer : public Joinable {
 public:
  /// Of the optimizers that optimizer_state_dict() knows. Lifetime: both live
  /// as long as this.
  /// Throws: c10::ValueError for a ZeroRedundancyOptimizer.
  JoinableOptimizer(
      torch::optim::Optimizer& optimizer,
      DistributedDataParallelBase& ddp);

  /// Throws: c10::ValueError unless `ddp` is in the Join, before this.
  std::shared_ptr<JoinHook> join_hook(const JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;

 private:
  torch::optim::Optimizer& optimizer_;
  DistributedDataParallelBase& ddp_;
};

} // namespace weft::ddp
