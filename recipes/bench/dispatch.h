#pragma once

#include <string>

namespace weft::recipes::bench {

/// Times add, mul and linear on small DTensors against the same ops on plain
/// tensors, in turn, with and without a graph; one line of JSON, microseconds.
std::string run_dispatch();

} // namespace weft::recipes::bench
