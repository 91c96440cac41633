#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "data_parallel/comm_hooks/comm_hook.h"
#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// The sum of a sparse tensor over a group: rows of all ranks, those of the
/// same index added in the order of ranks.
/// Shapes: the same sizes and sparse dims on all ranks, any number of entries.
/// Collective: all ranks of `group`, what the future runs too.
/// Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp,
/// AsyncSparseAllreduceWork.
BucketFuture sum_sparse(
    const at::Tensor& sparse,
    const mesh::Communicator& group,
    const std::string& name);

} // namespace weft::ddp
