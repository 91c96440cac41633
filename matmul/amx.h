#pragma once

#include <ATen/core/Tensor.h>

namespace weft::matmul::amx {

// Note [Pairs of rows]
// ~~~~~~~~~~~~~~~~~~~~
// AMX reads the second matrix of a product, [k, n] of bfloat16, in pairs of
// rows: int32 [k / 2, n], whose element [i, j] has the bits of [2 i, j] in its
// lower half and those of [2 i + 1, j] in its upper half.

/// Returns true if the processor multiplies bfloat16 with AMX (Advanced Matrix
/// Extensions) and libtorch gives access to it. Such matmuls are several times
/// faster than those of float32.
bool is_available();

/// Returns the transposed matrices in pairs of rows. `rows` is contiguous
/// bfloat16 [e, n, k] with even k, the result int32 [e, k / 2, n].
at::Tensor pair_columns(const at::Tensor& rows);

/// Computes out = a b, or out += a b if `accumulate`, for each matrix of a
/// batch. Sums are in float32. `out` is float32 [e, m, n], `a` bfloat16 [e, m,
/// k], and `pairs` is b in pairs of rows, int32 [e, k / 2, n]. The last dim of
/// each is contiguous, and `out` shares no memory with the others. Needs
/// is_available().
void multiply_into(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& pairs,
    bool accumulate = false);

} // namespace weft::matmul::amx
