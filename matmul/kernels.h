#pragma once

namespace weft::matmul {

/// Puts kernels in the place of libtorch's for mm, addmm, bmm and baddbmm on
/// the CPU. Each asks library() and the tensors, and hands what oneDNN is not
/// to multiply to the kernel that was there. May be called again.
void register_kernels();

} // namespace weft::matmul
