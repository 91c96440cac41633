#pragma once

#include <cstdint>
#include <memory>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::data_parallel {

/// The options of post_localSGD_hook().
/// Source: torch/distributed/algorithms/ddp_comm_hooks/post_localSGD_hook.py.
struct PostLocalSGDState {
  /// A group of some replicas including this rank, e.g. those of a node. See
  /// new_subgroups().
  mesh::Communicator subgroup;
  /// The number of steps that average gradients over all replicas.
  int64_t start_localSGD_iter = 0;
  /// Averages over the subgroup after those steps. If false, gradients are not
  /// averaged.
  bool post_local_gradient_allreduce = true;
};

/// Averages gradients over all replicas for the first iterations and then over
/// a subgroup. To be used with a model averager whose warmup_steps are
/// start_localSGD_iter, or with PostLocalSGDOptimizer.
/// Throws: c10::ValueError if start_localSGD_iter is negative or, when run, if
/// a rank of the subgroup is not a replica.
std::shared_ptr<CommHook> post_localSGD_hook(PostLocalSGDState state);

} // namespace weft::data_parallel
