#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/kernels/linear_adapter.h"
#include "dtensor/spec/spec.h"

namespace weft::dtensor::kernels {

// Note [Linear in place]
// ~~~~~~~~~~~~~~~~~~~~~~
// Where the weight and the bias are placed as linear() wants them, it needs no
// region of recorded local tensors: the op runs below autograd and one node
// takes the place of libtorch's own for t() and mm and of those that enter and
// leave a region. Its gradients are the same products of the same local
// tensors. An input that is elsewhere enters as in a region, so that all who
// ask for it share one move: the node then stands on its local tensor. What is
// to be moved (an outer gradient), or recorded (create_graph), goes through a
// region.

/// The specs of a linear's tensors, as entries of the mesh's table.
struct LinearPlan {
  using Entry = const DTensorSpec::Entry*;
  Entry weight, bias, input, output;
  Entry weight_grad, bias_grad, input_grad, output_grad;
};

/// Records `output` in the graph as the result of linear() on `x` (a DTensor,
/// or the local tensor of one), `w` and `b` (undefined if there is none).
/// `plan` must live as long as `mesh`, which the node keeps alive.
/// `is_scattered` means that the output's Partial was reduce-scattered instead
/// of having the plan's spec; its gradient is then all-gathered, overlapped
/// with a matmul if that saves time.
void record_linear(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    const mesh::DeviceMesh& mesh,
    const LinearPlan& plan,
    bool is_scattered,
    at::Tensor& output);

/// Returns what the adapter of a weight with spec `weight` adds to linear() of
/// the DTensor `x`, before the style's output placement. `sizes` are those of
/// the output.
at::Tensor adapter_output(
    const LinearAdapter& adapter,
    const at::Tensor& x,
    const DTensorSpec& weight,
    const LinearPlan& plan,
    c10::IntArrayRef sizes,
    bool asked);

} // namespace weft::dtensor::kernels
