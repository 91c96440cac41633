#pragma once

#include "tests/dtensor/op_check/by_hand.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

/// Takes the rule of `sample`'s op at its word: runs each strategy by hand on
/// each rank's parts and compares what they make with the op on the whole
/// tensors; sizes and strides too.
void check_strategies(const Sample& sample, const Grid& grid, Report& report);

} // namespace weft::dtensor::check
