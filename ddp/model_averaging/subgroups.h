#pragma once

#include <cstdint>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The part of `mesh` that this rank is in, if its ranks are cut, in their
/// order, into groups of `group_size`.
/// Collective: all ranks of the world, in the same order with other calls;
/// blocks.
/// Throws: c10::ValueError for a mesh of several dims, or if `group_size` does
/// not divide its size.
/// Source: torch/distributed/distributed_c10d.py, new_subgroups.
mesh::Communicator new_subgroups(
    const mesh::DeviceMesh& mesh,
    int64_t group_size);

} // namespace weft::ddp
