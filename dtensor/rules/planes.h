#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor::rules {

/// How many of the last dims are positions: 2 of "aten::avg_pool2d".
int64_t plane_dims(const OpCall& call);

/// Ops on tensors [N, C, positions ..] or [C, positions ..] that treat each
/// channel of each sample alone: the tensors of the arguments named are cut
/// together, as are the outputs. No kernel takes an input without channels.
std::vector<Strategy> cut_planes(
    const OpCall& call,
    const StrategyContext& context,
    std::initializer_list<std::string_view> inputs,
    int64_t outputs = 1);

} // namespace weft::dtensor::rules
