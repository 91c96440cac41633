#pragma once

#include <string>

namespace weft::recipes::bench {

/// Times random ops on DTensors, whose numbers do not depend on the mesh,
/// against libtorch's generator filling as many elements of a plain tensor, in
/// turn, on one thread: `<op>_local_us`, `<op>_dtensor_us`, medians in
/// microseconds. One line of JSON.
std::string run_random();

} // namespace weft::recipes::bench
