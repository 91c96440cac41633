#pragma once

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// Redistributes a leaf's gradient to the leaf's placement, with Partial
/// replaced by Replicate: it is the gradient with respect to the reduced
/// tensor, for any reduction. A Partial sum that becomes Replicate (norm
/// weights under sequence parallelism) is reduced at the end of backward
/// together with the others of its mesh, in one collective per mesh dim. Does
/// nothing for a tensor without requires_grad or if called again.
/// Collective: its effect, at the end of each backward, over the leaf's mesh.
void match_gradient_placement(const at::Tensor& leaf);

/// Turns a replicated gradient into an equal Partial one in the same memory:
/// for a sum, rank 0 of each mesh dim keeps the values and the other ranks set
/// zeros.
void make_gradient_partial(
    const at::Tensor& gradient,
    const class DTensorSpec& partial);

} // namespace weft::dtensor
