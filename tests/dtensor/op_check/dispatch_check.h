#pragma once

#include <cstdint>

#include "tests/dtensor/op_check/lockstep.h"
#include "tests/dtensor/op_check/op_samples.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

struct DispatchOptions {
  /// Placement combinations of one sample on one mesh: all if there are no
  /// more, else this many picked by `seed`.
  int64_t combinations = 8;
  uint64_t seed = 0;
};

/// Calls `sample`'s op on DTensors, through libtorch's dispatcher, on ranks
/// that communicate, and compares full_tensor() of what comes out, and the
/// gradients, with one rank's.
void check_dispatch(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const DispatchOptions& options,
    Report& report);

/// Like check_dispatch(), for ops with several differentiable operands: with
/// mixes of Replicate, Shard along any dim and Partial among the operands: each
/// has a placement of its own.
void check_operands(
    const Sample& sample,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const DispatchOptions& options,
    Report& report);

/// Notes in `report` if the op, on one of these samples of it, takes a cut
/// input without gathering it: what shows that one without strategies is
/// sharded; and if it refuses all of them, whole inputs too. `mesh_shape`: of
/// one dim.
void check_cut_is_kept(
    const std::vector<Sample>& samples,
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    Report& report);

} // namespace weft::dtensor::check
