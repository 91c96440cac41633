#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace weft::dtensor {

/// Checks that a transformer can be trained in a dtype on a device: runs the
/// required ops (matmuls, softmax, norms, embedding, attention, loss), forward
/// and backward, on small tensors. Takes milliseconds and draws no random
/// numbers.
/// Throws: c10::ValueError naming the first op that fails, and why.
void check_dtype(c10::Device device, c10::ScalarType dtype);

} // namespace weft::dtensor
