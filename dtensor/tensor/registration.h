#pragma once

namespace weft::dtensor {

/// Registers the DTensor kernels with libtorch's dispatcher, once per process.
/// Called by every function that creates DTensors. Defined in
/// dtensor/registration.cpp, above everything that it registers.
void ensure_dispatch_registered();

} // namespace weft::dtensor
