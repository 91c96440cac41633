#pragma once

#include <ATen/core/Tensor.h>

namespace weft::ddp {

/// Makes the columns of each matrix orthonormal, in place: with Gram-Schmidt
/// up to two columns, with QR for more. Columns of zeros stay zeros in the
/// first; `epsilon` is added to the norms there.
/// Shapes: matrices [b, n, r], r <= n; float32 or float64.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py,
/// _orthogonalize.
void orthogonalize(const at::Tensor& matrices, double epsilon);

} // namespace weft::ddp
