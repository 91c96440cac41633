#pragma once

#include <cstdint>
#include <memory>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::ddp {

/// Source: torch/distributed/algorithms/ddp_comm_hooks/post_localSGD_hook.py.
struct PostLocalSGDState {
  /// Some of the replicas, this rank among them, e.g. those of a node; see
  /// new_subgroups().
  mesh::Communicator subgroup;
  /// How many steps average gradients over all replicas.
  int64_t start_localSGD_iter = 0;
  /// After those, average over the subgroup; otherwise not at all.
  bool post_local_gradient_allreduce = true;
};

/// Averages gradients over all replicas until an iteration and over a subgroup
/// from then on. To be used with a model averager whose warmup_steps are
/// start_localSGD_iter, or with PostLocalSGDOptimizer.
/// Throws: c10::ValueError if start_localSGD_iter is negative or, when run, a
/// rank of the subgroup is no replica.
std::shared_ptr<CommHook> post_localSGD_hook(PostLocalSGDState state);

} // namespace weft::ddp
