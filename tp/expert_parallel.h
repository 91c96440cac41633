#pragma once

#include "tp/style.h"

namespace weft::tp {

struct ExpertParallelOptions {
  /// Where the output goes; by default where the op leaves it: as the tokens
  /// lie if they are cut, else Partial.
  std::optional<Placement> output_layouts = std::nullopt;
};

/// Cuts all parameters of a module by experts, their first dim: Shard(0), so
/// that each rank has some experts whole (the last ranks fewer or none, where
/// they do not divide). What a rank's experts compute is for dtensor::experts()
/// to see to. output_layouts acts on modules called through
/// weft::dtensor::call().
ParallelStyle ExpertParallel(ExpertParallelOptions options = {});

} // namespace weft::tp
