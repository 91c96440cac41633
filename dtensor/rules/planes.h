#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor::rules {

/// Returns the number of trailing spatial dims: 2 for "aten::avg_pool2d".
int64_t plane_dims(const OpCall& call);

/// Returns strategies for ops on tensors [N, C, spatial ..] or [C, spatial ..]
/// that process each channel of each sample separately: the named tensor
/// arguments are sharded together, as are the outputs. Inputs must have
/// channels.
std::vector<Strategy> cut_planes(
    const OpCall& call,
    const StrategyContext& context,
    std::initializer_list<std::string_view> inputs,
    int64_t outputs = 1);

/// Returns true if libtorch considers a tensor of these global strides
/// channels-last.
bool has_channels_last(const TensorArgument& argument);
/// Returns the metadata of a dense tensor, with dim 1 last in memory if
/// `channels_last`.
OutputMeta laid_out(std::vector<int64_t> sizes, bool channels_last);

} // namespace weft::dtensor::rules
