#pragma once

#include <string>
#include <vector>

#include "dtensor/rules/rule.h"
#include "tests/dtensor/op_check/op_samples.h"

namespace weft::dtensor::check {

/// What each rank holds of `whole`, row-major; a Partial's terms are random
/// ones that reduce to it. See Note [Exact terms].
std::vector<at::Tensor> cut_parts(
    const at::Tensor& whole,
    const Placements& placements,
    c10::IntArrayRef mesh_shape);

/// The whole that parts under `placements` stand for, one a rank, row-major.
/// Throws: c10::Error if replicated parts differ or shards have wrong sizes.
at::Tensor join_parts(
    const std::vector<at::Tensor>& parts,
    const Placements& placements,
    c10::IntArrayRef mesh_shape,
    c10::IntArrayRef sizes);

/// Throws: c10::Error that shows both, unless sizes and dtypes are equal and
/// the values close, as close as the dtype allows.
void require_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    const char* what);

/// Whether sizes and dtypes are equal and the values close.
bool is_close(const at::Tensor& a, const at::Tensor& b);

/// How far a result of `dtype` may be off: relative and absolute, of narrow
/// floats relative to the largest element.
double tolerance_of(at::ScalarType dtype);

/// "S(0) R -> P(sum)".
std::string describe(const Placements& inputs, const Placements& outputs);

} // namespace weft::dtensor::check
