#pragma once

#include "tests/dtensor/op_check/by_hand.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

struct StrategyOptions {
  /// Cuts that are not the chunk rule's, too, on meshes of one dim.
  bool other_cuts = true;
  /// One of so many combinations of mesh dims' strategies is run.
  uint64_t stride = 1;
  uint64_t seed = 0;
};

/// Takes the rule of `sample`'s op at its word: runs each strategy by hand on
/// each rank's parts and compares what they make with the op on the whole
/// tensors; sizes and strides too.
void check_strategies(
    const Sample& sample,
    const Grid& grid,
    const StrategyOptions& options,
    Report& report);

} // namespace weft::dtensor::check
