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

/// Implements DevicePlugin::swiglu.
bool swiglu(
    const at::Tensor& output,
    const at::Tensor& gate,
    const at::Tensor& up);

/// Implements DevicePlugin::swiglu_backward.
bool swiglu_backward(
    const at::Tensor& gate_grad,
    const at::Tensor& up_grad,
    const at::Tensor& grad,
    const at::Tensor& gate,
    const at::Tensor& up);

/// Implements DevicePlugin::rotary_embedding.
bool rotary_embedding(
    const at::Tensor& output,
    const at::Tensor& x,
    const at::Tensor& cos,
    const at::Tensor& sin,
    bool transposed);

/// Implements DevicePlugin::class_statistics.
bool class_statistics(
    const at::Tensor& statistics,
    const mesh::ClassLogits& part);

/// Implements DevicePlugin::class_gradient.
bool class_gradient(
    const at::Tensor& grad,
    const mesh::ClassLogits& part,
    const at::Tensor& log_sum,
    const at::Tensor& loss_grad,
    const at::Tensor& log_sum_grad);

} // namespace weft::cuda
