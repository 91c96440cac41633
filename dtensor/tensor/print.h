#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// Prints what `stream << tensor` shows. A DTensor is shown as its describe()
/// and this rank's values, other tensors as libtorch shows them. Never
/// communicates. An error becomes part of the text.
void print(
    std::ostream& stream,
    const at::Tensor& tensor,
    int64_t line_size = 80);
std::string to_string(const at::Tensor& tensor);

} // namespace weft::dtensor
