#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// Which ranks hold which part of a DTensor, as text: a row for one cut tensor
/// dim, a grid for two, a line a rank for more; "0-3" are rows 0 to 3. Never
/// throws and never communicates: what cannot be shown is said in the text.
/// Source: torch/distributed/tensor/debug/_visualize_sharding.py.
std::string visualize_sharding(const at::Tensor& dtensor);

/// The same for a tensor of `sizes` that lies so.
std::string visualize_sharding(const DTensorSpec& spec, c10::IntArrayRef sizes);

} // namespace weft::dtensor
