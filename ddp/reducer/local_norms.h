#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::ddp {

/// The norm of this rank's gradients in one bucket.
struct LocalNorm {
  /// The parameters in the order of their bucket.
  std::vector<std::string> parameters;
  /// The 2-norm before the reduction. Not finite if an element is not, or if a
  /// sum of squares overflows.
  double norm = 0;
};

/// Makes the reducers of `parameters`, which must exist, record the values of
/// local_norms(). Costs a pass over the gradients in each backward.
void enable_local_norms(const std::vector<at::Tensor>& parameters);

/// Returns the norms of the last synchronized backward by bucket. They show
/// which rank contributed a value that the reduction spread to all ranks.
/// Parameters whose gradients are not reduced are left out, because their
/// gradients are still local.
std::vector<LocalNorm> local_norms(const std::vector<at::Tensor>& parameters);

} // namespace weft::ddp
