#pragma once

namespace weft::dtensor {

/// Gives the ops that libtorch's C++ cannot run on the meta device, and that
/// training meets, kernels that only make outputs: of fitting sizes and dtype,
/// no data. Registered once for the process, where libtorch has none.
void ensure_meta_kernels();

} // namespace weft::dtensor
