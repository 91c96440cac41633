#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"

namespace weft::mesh {

/// Reduces the rows of `parts` into `output`, first row first, halves and
/// bfloat16 in float. The order never depends on where an element lies.
/// Shapes: parts [n, count], output [count], one dtype.
void reduce_rows(
    const at::Tensor& output,
    const at::Tensor& parts,
    ReduceOp op);

} // namespace weft::mesh
