#pragma once

#include <cstdint>
#include <vector>

#include "tests/dtensor/op_check/lockstep.h"
#include "tests/dtensor/op_check/op_samples.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

struct LeafOptions {
  /// Cases of one sample on one mesh: all if there are no more, else this many
  /// picked by `seed`.
  int64_t cases = 16;
  uint64_t seed = 0;
};

/// Calls `sample`'s op, if it has a gradient, on leaves that were placed in
/// every way, runs backward() as a user does, and compares the result and what
/// each leaf's grad() holds with one rank's. A case is right, or all ranks
/// throw a c10::ValueError (counted in `report`); anything else is a failure.
void check_leaves(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const LeafOptions& options,
    Report& report);

} // namespace weft::dtensor::check
