#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// Sums a sparse tensor over a group; rows with the same index are added in
/// rank order.
/// Shapes: equal sizes and sparse dims on all ranks, any number of entries.
/// Collective: all ranks of `group`, including collectives of the future.
/// Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
/// AsyncSparseAllreduceWork.
data_parallel::BucketFuture sum_sparse(
    const at::Tensor& sparse,
    const mesh::Communicator& group,
    const std::string& name);

} // namespace weft::ddp
