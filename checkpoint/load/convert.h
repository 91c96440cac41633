#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace weft::checkpoint {

/// Whether tensors of dtype `from` can become ones of `to`, their values
/// permitting: both are real (bool, integral, floating point), or the same.
bool is_convertible(at::ScalarType from, at::ScalarType to);

/// `tensor`, on the CPU, as a `to`. Floating to floating point rounds; all else
/// is exact.
/// Throws: c10::ValueError naming `name` and a value that does not fit: one
/// that would become infinite, is out of range, or is no whole number.
at::Tensor convert_exactly(
    const at::Tensor& tensor,
    at::ScalarType to,
    const std::string& name);

} // namespace weft::checkpoint
