#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace weft::checkpoint {

/// Returns true if tensors of dtype `from` can be converted to `to` when their
/// values permit it: both are real (bool, integral, floating point), or they
/// are equal.
bool is_convertible(at::ScalarType from, at::ScalarType to);

/// Returns `tensor`, which is on the CPU, converted to dtype `to`. Conversion
/// between floating-point dtypes rounds; any other conversion is exact.
/// Throws: c10::ValueError naming `name` and a value if the value does not fit:
/// it would become infinite, is out of range, or is not an integer.
at::Tensor convert_exactly(
    const at::Tensor& tensor,
    at::ScalarType to,
    const std::string& name);

} // namespace weft::checkpoint
