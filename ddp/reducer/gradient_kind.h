#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::ddp {

/// Returns true if the gradient is Partial over more than one rank.
bool is_partial(const dtensor::DTensorSpec& spec);

constexpr int64_t kUnknownKind = -1;
constexpr int64_t kSparseKind = int64_t{1} << 40;

/// Returns how a gradient is reduced, as a number that is identical on all
/// ranks: the mesh dims over which it is Partial, as bits, or that it is
/// sparse.
int64_t kind_of(const at::Tensor& gradient);

/// Returns the spec of the gradient of a parameter at `spec`. Empty if it is
/// not Partial.
std::optional<dtensor::DTensorSpec> partial_of_kind(
    dtensor::DTensorSpec spec,
    int64_t kind);

} // namespace weft::ddp
