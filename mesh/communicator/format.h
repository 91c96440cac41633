#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

/// The advice for ranks that called different collectives.
inline constexpr const char* kSameCalls =
    "All ranks of a group call the same collectives, in the same order, with "
    "the same names, shapes and dtypes: look for what depends on the rank or "
    "on its data";

/// The advice for threads that share a group.
inline constexpr const char* kOneCaller =
    "A group serves one caller: have one thread call, start a thread after the "
    "one before it was joined, or give each a group of its own "
    "(World::make_group(), DeviceMesh::from_group())";

/// Formats an entry: "all_reduce #12 ("layers.0.wq" [2, 3] Float, 24 bytes)".
std::string call_text(const FlightRecorderEntry& entry);

/// Formats ranks: "rank 3", "ranks 0 to 2", "ranks 0, 2 and 5".
std::string ranks_text(const std::vector<int64_t>& ranks);

/// Formats a duration: "15.2 s".
std::string seconds_text(int64_t nanoseconds);

} // namespace weft::mesh
