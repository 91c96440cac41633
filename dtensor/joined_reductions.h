#pragma once

#include <set>
#include <string>

namespace torch {
class Library;
} // namespace torch

// Note [Joined reductions]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// The 2-norm of a cut dim, or the place of its maximum, is no reduction of the
// parts' that a Partial could wait with. Below autograd these have kernels of
// their own: each rank reduces its part, the mesh dims that cut a reduced dim
// join the results (norms as sums of powers, maxima as pairs of value and
// index), and the mesh dims that cut another dim keep it cut. What moves is the
// size of the result, never the tensor.

namespace weft::dtensor {

/// Registers the kernels of norms, argmax, argmin and max and min along a dim;
/// adds their full names to `taken`.
void register_joined_reductions(
    torch::Library& library,
    std::set<std::string>& taken);

} // namespace weft::dtensor
