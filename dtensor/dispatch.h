#pragma once

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// Registers the DTensor kernels with libtorch's dispatcher, once a process.
/// Called by whatever makes the first DTensor.
void ensure_dispatch_registered();

} // namespace weft::dtensor
