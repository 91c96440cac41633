#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/device/device_plugin.h"

namespace weft::cuda {

/// "" if this library and libtorch were compiled with headers of one NCCL,
/// else what differs. See Note [NCCL's headers].
std::string nccl_mismatch();

/// DevicePlugin::make_group.
/// Collective: the members; blocks.
c10::intrusive_ptr<c10d::Backend> make_nccl_group(
    const mesh::DeviceGroup& group);

} // namespace weft::cuda
