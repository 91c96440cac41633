#pragma once

#include "tp/style.h"

namespace weft::tp {

struct ReplicatedKvHeadsOptions {
  /// The assumed placement of a plain input.
  Layout input_layouts = Replicate();
};

/// ColwiseParallel for keys and values with fewer heads than ranks, for a
/// Linear: the weight and the output stay replicated, and each rank uses the
/// heads that its queries share. In backward each rank's gradient of the output
/// is that of its own use; they are summed with the gradients of the input,
/// which is gathered once for queries, keys and values, and of the weight.
ParallelStyle ReplicatedKvHeads(ReplicatedKvHeadsOptions options = {});

} // namespace weft::tp
