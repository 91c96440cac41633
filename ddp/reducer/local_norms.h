#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::ddp {

/// Gradients of this rank alone, that were reduced together.
struct LocalNorm {
  /// In the order in which they lie in their bucket.
  std::vector<std::string> parameters;
  /// Their 2-norm before the reduction. Not finite if an element is not, or a
  /// sum of squares overflows.
  double norm = 0;
};

/// From now on the reducers of `parameters`, which listen already, keep what
/// local_norms() gives: a pass over the gradients each backward.
void enable_local_norms(const std::vector<at::Tensor>& parameters);

/// Of the last synchronised backward, bucket by bucket: who brought a number
/// that the sum over the replicas (and over the mesh of gradients that are
/// pending sums) has spread to all. Parameters whose gradients are not reduced
/// are left out: theirs are this rank's still.
std::vector<LocalNorm> local_norms(const std::vector<at::Tensor>& parameters);

} // namespace weft::ddp
