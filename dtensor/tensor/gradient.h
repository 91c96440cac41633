#pragma once

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// Keeps a leaf's gradient where the leaf lies, replicated where that is
/// Partial: it is the gradient with respect to what the leaf's terms reduce to,
/// whatever the reduction. A gradient that arrives elsewhere is redistributed;
/// a Partial sum that is to be replicated (norm weights under sequence
/// parallelism) waits for the end of backward and is reduced there together
/// with the others of its mesh, in one collective a mesh dim. Does nothing for
/// a tensor without requires_grad, and nothing the second time.
/// Collective: its effect, at the end of each backward, over the leaf's mesh.
void match_gradient_placement(const at::Tensor& leaf);

/// Turns a replicated gradient into the equal Partial one, in the same memory:
/// of a sum, rank 0 of each mesh dim keeps the values, the others hold zeros.
void make_gradient_partial(
    const at::Tensor& gradient,
    const class DTensorSpec& partial);

} // namespace weft::dtensor
