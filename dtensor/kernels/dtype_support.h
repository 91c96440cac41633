#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace weft::dtensor {

/// Refuses a dtype in which a transformer cannot be trained on a device: runs
/// the ops that one needs (products, softmax, norms, a lookup, attention, a
/// loss), forward and backward, on tensors of a few elements. Takes
/// milliseconds; makes no random numbers.
/// Throws: c10::ValueError that names the first op that fails, and why.
void check_dtype(c10::Device device, c10::ScalarType dtype);

} // namespace weft::dtensor
