#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// Formats which ranks hold which part of a DTensor: a row if one tensor dim is
/// sharded, a grid if two are, one line per rank for more. "0-3" means rows 0
/// to 3. Never throws and never communicates; an error becomes part of the
/// text.
/// Source: torch/distributed/tensor/debug/_visualize_sharding.py.
std::string visualize_sharding(const at::Tensor& dtensor);

/// Like visualize_sharding(dtensor), for a tensor of `sizes` with the
/// placements of `spec`.
std::string visualize_sharding(const DTensorSpec& spec, c10::IntArrayRef sizes);

} // namespace weft::dtensor
