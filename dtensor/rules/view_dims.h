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

/// What a dim that a view makes is made of, see Note [Views as runs of dims].
struct ViewDim {
  /// Outermost first.
  std::vector<int64_t> inputs = {};
  /// Product of the sizes of the run's output dims outside of this one.
  int64_t outer = 1;
};
using ViewDims = std::vector<ViewDim>;

/// Every input dim as it is.
ViewDims kept_dims(int64_t ndim);
/// The same without one.
ViewDims without_dim(int64_t ndim, int64_t removed);
/// [.., a, b, ..] of one shape as another one of as many elements; no dims of
/// it are known where there are no elements.
ViewDims reshaped_dims(c10::IntArrayRef from, c10::IntArrayRef to);

/// Whether each rank's rows of a dim of `from` rows are its rows of one of
/// `to`, in proportion, when both are cut by the chunk rule.
bool same_sharding(
    int64_t from,
    int64_t to,
    const OpCall& call,
    const StrategyContext& context);

/// The cuts that follow through a view of a tensor of sizes `from`, whose
/// result has the sizes `to`.
std::vector<Strategy> follow_dims(
    const OpCall& call,
    const StrategyContext& context,
    c10::IntArrayRef from,
    c10::IntArrayRef to,
    const ViewDims& dims);

} // namespace weft::dtensor::rules
