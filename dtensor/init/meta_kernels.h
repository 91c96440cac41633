#pragma once

namespace weft::dtensor {

/// Registers meta kernels for ops that training uses and that libtorch's C++
/// API cannot run on the meta device. They only create outputs of the right
/// sizes and dtype. Registered once per process, and only if libtorch has none.
void ensure_meta_kernels();

} // namespace weft::dtensor
