#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// Every rank's numbers, as many on each. Shape [size, n], on the CPU; [1, n]
/// in a group of one and in an imagined world, where only one's own are known.
/// Collective: all ranks of `group`; blocks. `device` is where the backend can
/// move bytes; the ledger shows `name`.
at::Tensor gather_numbers(
    mesh::Communicator& group,
    const std::vector<int64_t>& own,
    c10::Device device,
    std::string_view name);

} // namespace weft::ddp
