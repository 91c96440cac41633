#pragma once

#include <torch/nn/modules/linear.h>

namespace weft::dtensor {

/// What linear() adds to the product with a weight that has one (see
/// ParameterInfo::adapter): scale * up(down(dropout(x))). The two small weights
/// lie so that nothing more moves between ranks than for the product itself:
/// beside a weight S(0) (column-parallel) down is whole and up S(0), beside
/// S(1) (row-parallel) down is S(1) and up whole.
/// Source: Hu et al., LoRA (2021).
struct LinearAdapter {
  /// [rank, in] and [out, rank], without biases.
  torch::nn::Linear down{nullptr};
  torch::nn::Linear up{nullptr};
  double scale = 1.0;
  /// Of the input, while `down` is in training mode.
  double dropout = 0.0;
};

} // namespace weft::dtensor
