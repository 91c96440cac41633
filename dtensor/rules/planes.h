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

/// Whether libtorch takes a tensor of these global strides for one whose
/// channels lie last in memory.
bool has_channels_last(const TensorArgument& argument);
/// A dense tensor; its dim 1 last in memory if asked for.
OutputMeta laid_out(std::vector<int64_t> sizes, bool channels_last);

} // namespace weft::dtensor::rules
