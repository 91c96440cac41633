#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/communicator/communicator.h"

namespace weft::mesh {

/// Reduces the rows of `parts` into `output`, starting with the first row; Half
/// and BFloat16 accumulate in float. The order of additions does not depend on
/// an element's position.
/// Shapes: parts [n, count], output [count], one dtype.
void reduce_rows(
    const at::Tensor& output,
    const at::Tensor& parts,
    ReduceOp op);

} // namespace weft::mesh
