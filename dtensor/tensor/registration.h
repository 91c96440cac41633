#pragma once

namespace weft::dtensor {

/// Registers the DTensor kernels with libtorch's dispatcher, once a process.
/// Called by whatever makes the first DTensor. Defined above all that it
/// registers, in dtensor/registration.cpp.
void ensure_dispatch_registered();

} // namespace weft::dtensor
