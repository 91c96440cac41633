#pragma once

#include <ATen/core/Tensor.h>

namespace weft::data_parallel {

/// Orthonormalizes the columns of each matrix in place: with Gram-Schmidt for
/// up to two columns, which adds `epsilon` to the norms and keeps zero columns
/// zero, and with QR for more.
/// Shapes: matrices [b, n, r], r <= n; float32 or float64.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py,
/// _orthogonalize.
void orthogonalize(const at::Tensor& matrices, double epsilon);

} // namespace weft::data_parallel
