#pragma once

namespace weft::matmul {

/// Replaces libtorch's CPU kernels of mm, addmm, bmm and baddbmm. Each kernel
/// checks library() and the tensors, and calls the previous kernel for matmuls
/// that are not oneDNN's. May be called again.
void register_kernels();

} // namespace weft::matmul
