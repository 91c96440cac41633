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

/// A reduction along `dims` of a tensor as it lies: what each rank reduces, and
/// where the result is.
struct CrossShardReduction {
  at::Tensor local;
  DTensorSpec input;
  DTensorSpec output;
  std::vector<int64_t> dims;
  /// The result's, global.
  std::vector<int64_t> sizes;
  /// Mesh dims that cut a reduced dim.
  std::vector<int64_t> joined;

  /// This rank has no element to reduce.
  bool is_empty() const;
};

enum class Parts {
  /// Any part of a reduced dim.
  kAny,
  /// Rows that lie together, or the dim is gathered.
  kBoxes,
  /// Reduced dims are gathered.
  kReplicated
};

/// Brings `self` to where its parts can be reduced. No or empty `dims`: all.
/// Collective: all ranks of the mesh, if anything has to move.
CrossShardReduction reduce_parts(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim,
    Parts parts,
    const char* name);

/// The result of all ranks, from this rank's part of it.
at::Tensor wrap_reduction(
    const CrossShardReduction& reduction,
    const at::Tensor& local);

/// Every rank's `part` of one mesh dim, one after the other in a new first dim.
/// Collective: the ranks of that mesh dim.
at::Tensor gather_parts(
    const CrossShardReduction& reduction,
    int64_t mesh_dim,
    const at::Tensor& part,
    const char* name);

/// Register kernels below autograd, and add their full names to `taken`.
void register_norms(torch::Library& library, std::set<std::string>& taken);
/// argmax, argmin, max and min along a dim.
void register_min_max(torch::Library& library, std::set<std::string>& taken);
/// var, std (and with mean) and logsumexp.
void register_statistics(torch::Library& library, std::set<std::string>& taken);

} // namespace weft::dtensor
