#pragma once

#include "tp/style.h"

namespace weft::tp {

/// The options of ExpertParallel().
struct ExpertParallelOptions {
  /// The placement of the output. The default is that of the op: like the
  /// tokens if they are sharded, otherwise Partial.
  std::optional<Placement> output_layouts = std::nullopt;
};

/// Shards all parameters of a module by experts, their first dim: Shard(0), so
/// that each rank has some experts (the last ranks fewer or none, if the number
/// does not divide). dtensor::experts() exchanges tokens and results.
/// output_layouts applies to modules called through weft::dtensor::call().
ParallelStyle ExpertParallel(ExpertParallelOptions options = {});

} // namespace weft::tp
