#pragma once

#include <string>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// Describes the input whose placement could change to reduce communication.
/// Empty if there is none.
std::string cheaper_placements(const OpCall& call);

} // namespace weft::dtensor
