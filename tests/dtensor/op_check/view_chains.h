#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/dtensor/op_check/lockstep.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

/// What came of the programs with a view op or a placement in them.
struct ChainCounts {
  int64_t right = 0;
  int64_t refused = 0;
};

/// By name of the view op, "base [S(0)]" or "in a graph".
using ChainFamilies = std::map<std::string, ChainCounts>;

struct ChainOptions {
  int64_t programs = 1000;
  uint64_t seed = 0;
};

/// Runs random programs on DTensors and on plain tensors: chains of views of a
/// base, writes through any of them and reads of any of them, in a graph and
/// out of one. Each program gives the values, and the gradient of the base, of
/// one rank, or is refused with an error on all ranks.
ChainFamilies check_view_chains(
    LockstepRanks& ranks,
    const std::vector<int64_t>& mesh_shape,
    const ChainOptions& options,
    Report& report);

} // namespace weft::dtensor::check
