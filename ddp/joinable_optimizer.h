#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "data_parallel/join/joinable.h"
#include "ddp/distributed_data_parallel.h"

namespace weft::ddp {

/// An optimizer of the module that `ddp` wraps, for a Join with it. Ranks that
/// run out of inputs miss steps; at the end they get the optimizer's state
/// (momentum, step counts, learning rates) of a rank that missed none. Without
/// it replicas would diverge in the next epoch. Optimizers in backward do not
/// need it.
class JoinableOptimizer : public data_parallel::Joinable {
 public:
  /// Supports the optimizers that optimizer_state_dict() supports.
  /// Lifetime: both arguments must outlive this object.
  /// Throws: c10::ValueError for a ZeroRedundancyOptimizer.
  JoinableOptimizer(
      torch::optim::Optimizer& optimizer,
      DistributedDataParallelBase& ddp);

  /// Throws: c10::ValueError unless `ddp` is in the Join, before this object.
  std::shared_ptr<data_parallel::JoinHook> join_hook(
      const data_parallel::JoinKwargs& kwargs) override;
  c10::Device join_device() const override;
  mesh::Communicator join_process_group() const override;
  mesh::DeviceMesh join_model_parallel_mesh() const override;

 private:
  torch::optim::Optimizer& optimizer_;
  DistributedDataParallelBase& ddp_;
};

} // namespace weft::ddp
