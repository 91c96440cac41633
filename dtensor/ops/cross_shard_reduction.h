#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace torch {
class Library;
} // namespace torch

// Note [Cross-shard reductions]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The 2-norm of a cut dim, or the place of its maximum, is no reduction of the
// parts' that a Partial could wait with. Below autograd these have kernels of
// their own: each rank reduces its part, the mesh dims that cut a reduced dim
// join the results (norms as sums of powers, maxima as pairs of value and
// index, variances as counts, means and squares), and the mesh dims that cut
// another dim keep it cut. What moves is the size of the result, never the
// tensor.

namespace weft::dtensor {

/// A reduction along `dims` of a sharded tensor: the input of each rank and the
/// spec of the result.
struct CrossShardReduction {
  at::Tensor local;
  DTensorSpec input;
  DTensorSpec output;
  std::vector<int64_t> dims;
  /// The global sizes of the result.
  std::vector<int64_t> sizes;
  /// The mesh dims that shard a reduced dim.
  std::vector<int64_t> joined;

  /// Returns true if this rank has no element to reduce.
  bool is_empty() const;
};

enum class Parts {
  /// Any rows of a reduced dim.
  kAny,
  /// Consecutive rows; otherwise the dim is gathered.
  kBoxes,
  /// Reduced dims are gathered.
  kReplicated
};

/// Redistributes `self` so that its local tensors can be reduced. Missing or
/// empty `dims` means all dims.
/// Collective: all ranks of the mesh, if a redistribution is needed.
CrossShardReduction reduce_parts(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim,
    Parts parts,
    const char* name);

/// Returns the global result for this rank's local result.
at::Tensor wrap_reduction(
    const CrossShardReduction& reduction,
    const at::Tensor& local);

/// Gathers `part` from every rank of a mesh dim along a new first dim.
/// Collective: the ranks of that mesh dim.
at::Tensor gather_parts(
    const CrossShardReduction& reduction,
    int64_t mesh_dim,
    const at::Tensor& part,
    const char* name);

/// Registers norms below autograd and adds their full names to `taken`.
void register_norms(torch::Library& library, std::set<std::string>& taken);
/// Registers argmax, argmin, and max and min along a dim in the same way.
void register_min_max(torch::Library& library, std::set<std::string>& taken);
/// Registers var and std (also with mean) and logsumexp in the same way.
void register_statistics(torch::Library& library, std::set<std::string>& taken);

} // namespace weft::dtensor
