#pragma once

#include "tp/style.h"

namespace weft::tp {

struct ReplicatedKvHeadsOptions {
  /// How a plain input is taken to lie.
  Layout input_layouts = Replicate();
};

/// What ColwiseParallel is for keys and values, where there are fewer heads of
/// them than ranks: the weight and the output stay whole on every rank, which
/// uses the heads that its queries share. Backward each rank's gradient of the
/// output is that of its own use; the ranks' are added up with the gradients of
/// the input, which is gathered once for queries, keys and values, and of the
/// weight. For a Linear.
ParallelStyle ReplicatedKvHeads(ReplicatedKvHeadsOptions options = {});

} // namespace weft::tp
