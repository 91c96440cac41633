#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data_parallel/parameters/module_state.h"
#include "mesh/device_mesh.h"

namespace weft::data_parallel {

/// Compares number, names, sizes, strides, dtypes, placements and requires_grad
/// of the replicas' parameters and buffers, and `options`, one line per option.
/// Collective: all ranks of `dp`; blocks.
/// Throws: mesh::DisagreementError on all ranks, naming the first difference
/// and the values of rank 0 and of the first rank that differs from it.
void check_replicas_agree(
    const std::vector<NamedTensor>& parameters,
    const std::vector<NamedTensor>& buffers,
    const std::vector<std::string>& options,
    const mesh::DeviceMesh& dp);

/// Overwrites the tensors (the local tensor of a DTensor) with those of `root`,
/// a rank of `group`, many in one message.
/// Collective: all ranks of `group`; blocks.
void broadcast_from(
    int64_t root,
    const std::vector<NamedTensor>& tensors,
    mesh::Communicator& group,
    std::string_view name);

} // namespace weft::data_parallel
