#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/device/device_plugin.h"

// The kernels over tensors, on the current stream.
namespace weft::cuda {

/// Implements DevicePlugin::reduce_rows.
bool reduce_rows(
    const at::Tensor& output,
    const at::Tensor& parts,
    mesh::ReduceOp op);

/// Implements DevicePlugin::fill_random.
bool fill_random(const at::Tensor& local, const mesh::RandomFill& fill);

} // namespace weft::cuda
