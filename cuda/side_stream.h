#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "mesh/device/device_plugin.h"

namespace weft::cuda {

/// Implements DevicePlugin::make_side_stream.
std::shared_ptr<void> make_side_stream(int64_t device);

/// Implements DevicePlugin::call_after.
void call_after(
    c10d::Work& work,
    const std::shared_ptr<void>& side_stream,
    std::function<void()> callback);

} // namespace weft::cuda
