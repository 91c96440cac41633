#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/kernels/linear_adapter.h"
#include "dtensor/spec/spec.h"

namespace weft::dtensor::kernels {

// Note [Linear in place]
// ~~~~~~~~~~~~~~~~~~~~~~
// Where the weight and the bias lie as linear() wants them, it needs no region
// of recorded local tensors: the op runs below autograd and one node takes the
// place of libtorch's own for t() and mm and of those that enter and leave a
// region. Its gradients are the same products of the same local tensors. An
// input that lies elsewhere enters as in a region, so that all who ask for it
// share one move: the node then stands on its local tensor. What is to be moved
// (an outer gradient), or recorded (create_graph), goes through a region.

/// Where the tensors of a linear lie, as entries of the mesh's table.
struct LinearPlan {
  using Entry = const DTensorSpec::Entry*;
  Entry weight, bias, input, output;
  Entry weight_grad, bias_grad, input_grad, output_grad;
};

/// Makes `output` the result of linear() on `x` (a DTensor, or the local tensor
/// of one that entered), `w` and `b` (undefined if there is none) in the graph.
/// `plan` lives as long as the mesh. `is_scattered`: the output lies not as
/// `plan` says, its pending sums were reduced and scattered; so its gradient is
/// gathered, beside a product where that saves time.
void record_linear(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    const LinearPlan& plan,
    bool is_scattered,
    at::Tensor& output);

/// What the adapter of a weight that lies as `weight` says adds to linear() of
/// `x`, a DTensor, before the style's output placement. `sizes`: the output's.
at::Tensor adapter_output(
    const LinearAdapter& adapter,
    const at::Tensor& x,
    const DTensorSpec& weight,
    const LinearPlan& plan,
    c10::IntArrayRef sizes,
    bool asked);

} // namespace weft::dtensor::kernels
