#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include "mesh/communicator.h"

namespace weft::mesh {

/// Every rank's text, by rank of the group; in an imagined world only this
/// rank's own is known, and stands for all.
/// Collective: all ranks of `group`; blocks. `device` is where the backend can
/// move bytes; the ledger shows `name`.
std::vector<std::string> all_gather_text(
    Communicator& group,
    const std::string& text,
    std::string_view name,
    c10::Device device = c10::Device(c10::DeviceType::CPU));

} // namespace weft::mesh
