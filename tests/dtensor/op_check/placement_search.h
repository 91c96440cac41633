#pragma once

#include <cstdint>

#include "tests/dtensor/op_check/by_hand.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

/// Runs `sample` by hand with its inputs placed in every way, on one mesh dim,
/// and notes in `report` those that cut an input, need no communication and
/// are unknown to the rule: where it gathers more than it needs. Values that
/// are right by chance are ruled out by a second set of inputs. Runs in a child
/// process: not every kernel survives operands that do not fit. To be called
/// while this process has one thread.
void search_placements(
    const Sample& sample,
    const Grid& grid,
    uint64_t seed,
    Report& report);

} // namespace weft::dtensor::check
