#pragma once

#include <memory>

#include "ddp/distributed_data_parallel.h"
#include "elastic/manager.h"

namespace weft::elastic {

namespace detail {

/// Throws: c10::ValueError for options that need replicas that stay the same.
ddp::DistributedDataParallelOptions checked_options(
    const mesh::DeviceMesh& dp_mesh,
    const ddp::DistributedDataParallelOptions& options);
/// Throws: c10::ValueError naming a module whose gradients are sparse.
void check_gradients(const torch::nn::Module& module);
/// Adds buckets over the groups of the manager's step.
std::shared_ptr<data_parallel::CommHook> make_comm_hook(Manager& manager);

} // namespace detail

/// A ddp::DistributedDataParallel whose replicas are the replica groups of a
/// manager: adds gradients over the groups of a step in buckets, while backward
/// computes others. Parameters may be DTensors on the ranks of a group.
///
/// The loss is divided by the size of the whole batch, because gradients are
/// added, not averaged. If Step::commit() returns false, they are of no use:
/// call zero_grad() before the step is done again.
///
/// Buckets are planned in the first backward of each process, and must be equal
/// in all groups. So all groups have the same model and options, and each
/// backward gives all parameters a gradient.
/// Source: torchft/ddp.py (DistributedDataParallel).
template <class M>
class DistributedDataParallel : public ddp::DistributedDataParallel<M> {
 public:
  /// `dp_mesh` is a 1-D mesh of this rank alone: the dim dp of a mesh {dp: 1,
  /// tp: n} of the group. Lifetime: `manager` must outlive this object.
  /// Throws: c10::ValueError for a larger mesh, and for options that cannot be
  /// combined with groups that come and go, and for sparse gradients; see
  /// ddp::DistributedDataParallel for others.
  DistributedDataParallel(
      Manager& manager,
      std::shared_ptr<M> module,
      const mesh::DeviceMesh& dp_mesh,
      const ddp::DistributedDataParallelOptions& options = {})
      : ddp::DistributedDataParallel<M>(
            std::move(module),
            dp_mesh,
            detail::checked_options(dp_mesh, options)) {
    detail::check_gradients(this->module());
    this->register_comm_hook(detail::make_comm_hook(manager));
  }
};

} // namespace weft::elastic
