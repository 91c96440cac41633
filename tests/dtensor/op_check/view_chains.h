#pragma once

#include <cstdint>
#include <vector>

#include "tests/dtensor/op_check/lockstep.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

struct ChainOptions {
  int64_t programs = 1000;
  uint64_t seed = 0;
};

/// Runs random programs on DTensors and on plain tensors: chains of views of a
/// base, writes through any of them and reads of any of them, in a graph and
/// out of one. Each program gives the values, and the gradient of the base, of
/// one rank, or is refused with an error on all ranks. Counts in report.chains.
void check_view_chains(
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const ChainOptions& options,
    Report& report);

} // namespace weft::dtensor::check
