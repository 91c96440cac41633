#pragma once

#include <vector>

#include "dtensor/rules/rule.h"

// Note [Views as runs of dims]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Every view says of each dim that comes out which dims of its input it is made
// of: one (kept), several (flattened), none (new, or broadcast). Where one run
// of input dims makes several output dims (split), each of those names the
// whole run, and how many rows of it lie outside.
//   [B, T, H*D] -> [B, T, H, D]: {0}, {1}, {2}, {2} with outer H
//   [B, T, C]   -> [B*T, C]:     {0, 1}, {2}
// A shard follows from the leading dim of a run to its leading output dim. Of
// equal sizes any cut may; otherwise the parts have to be views of themselves:
// each rank's rows of the one dim have to be its rows of the other.

namespace weft::dtensor::rules {

/// The input dims that form an output dim of a view. See Note [Views as runs of
/// dims].
struct ViewDim {
  /// The input dims, outermost first.
  std::vector<int64_t> inputs = {};
  /// The product of the sizes of the run's output dims outside this one.
  int64_t outer = 1;
};
using ViewDims = std::vector<ViewDim>;

/// Returns the identity: every input dim is an output dim.
ViewDims kept_dims(int64_t ndim);
/// Returns the identity without one dim.
ViewDims without_dim(int64_t ndim, int64_t removed);
/// Returns the dims of a reshape between shapes of equal numel. No dims are
/// known if there are no elements.
ViewDims reshaped_dims(c10::IntArrayRef from, c10::IntArrayRef to);

/// Returns true if the chunk rule gives each rank proportional rows of a dim of
/// `from` rows and of one of `to` rows.
bool same_sharding(
    int64_t from,
    int64_t to,
    const OpCall& call,
    const StrategyContext& context);

/// Returns the strategies that shard both sides of a view from sizes `from` to
/// sizes `to`.
std::vector<Strategy> follow_dims(
    const OpCall& call,
    const StrategyContext& context,
    c10::IntArrayRef from,
    c10::IntArrayRef to,
    const ViewDims& dims);

} // namespace weft::dtensor::rules
