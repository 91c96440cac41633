#pragma once

#include <torch/nn/modules/linear.h>

namespace weft::dtensor {

/// The LoRA adapter of a weight (see ParameterInfo::adapter): linear() adds
/// scale * up(down(dropout(x))). The placements of the two small weights add no
/// communication to that of the matmul: for a weight S(0) (column-parallel)
/// down is replicated and up is S(0); for a weight S(1) (row-parallel) down is
/// S(1) and up is replicated.
/// Source: Hu et al., LoRA (2021).
struct LinearAdapter {
  /// Linear layers [rank, in] and [out, rank] without biases.
  torch::nn::Linear down{nullptr};
  torch::nn::Linear up{nullptr};
  double scale = 1.0;
  /// The dropout probability of the input while `down` is in training mode.
  double dropout = 0.0;
};

} // namespace weft::dtensor
