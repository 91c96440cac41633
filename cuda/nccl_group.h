#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/device/device_plugin.h"

namespace weft::cuda {

/// Returns "" if this library and libtorch were compiled with the headers of
/// the same NCCL version. Otherwise describes the difference. See Note [NCCL's
/// headers].
std::string nccl_mismatch();

/// Implements DevicePlugin::make_group.
/// Collective: the members; blocks.
c10::intrusive_ptr<c10d::Backend> make_nccl_group(
    const mesh::DeviceGroup& group);

} // namespace weft::cuda
