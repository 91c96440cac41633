#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::ddp {

/// The gradient is a pending sum of more than one term.
bool is_partial(const dtensor::DTensorSpec& spec);

constexpr int64_t kUnknownKind = -1;
constexpr int64_t kSparseKind = int64_t{1} << 40;

/// How a gradient is reduced, as a number that is the same on all ranks: which
/// mesh dims it is a pending sum over, as bits, or that it is sparse.
int64_t kind_of(const at::Tensor& gradient);

/// The spec of the gradient of a parameter at `spec`, or none if it is no
/// pending sum.
std::optional<dtensor::DTensorSpec> partial_of_kind(
    dtensor::DTensorSpec spec,
    int64_t kind);

} // namespace weft::ddp
