#pragma once

#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor::rules {

/// Whether libtorch takes a tensor of these global strides for one whose
/// channels lie last in memory.
bool has_channels_last(const TensorArgument& argument);
/// A dense tensor; its dim 1 last in memory if asked for.
OutputMeta laid_out(std::vector<int64_t> sizes, bool channels_last);

} // namespace weft::dtensor::rules
