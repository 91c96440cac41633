#pragma once

#include <string>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// Which single input of an op, placed otherwise, would make it move less, in
/// words; empty if none would.
std::string cheaper_placements(const OpCall& call);

} // namespace weft::dtensor
