#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "mesh/communicator/communicator.h"

namespace weft::mesh {

/// Returns true if values of `dtype` can be reduced between ranks.
bool can_reduce(c10::ScalarType dtype);

/// Computes output[i] = rows[0][i] op rows[1][i] op ..., in this order. Half
/// and BFloat16 accumulate in float; an average divides at the end. For
/// booleans kSum is "or" and kProduct is "and". `output` may be one of the
/// rows.
/// Shapes: rows[num_rows][count], output [count].
/// Throws: c10::ValueError unless can_reduce(dtype).
void reduce_row_pointers(
    void* output,
    const void* const* rows,
    int64_t num_rows,
    int64_t count,
    c10::ScalarType dtype,
    ReduceOp op);

} // namespace weft::mesh
