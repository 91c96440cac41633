#pragma once

#include <optional>
#include <string>

namespace weft::recipes::bench {

/// Times redistributions of 1 MB and 64 MB over all ranks of the job:
/// `<from>_to_<to>_<size>mb_us`, medians in microseconds, under the names that
/// bench/peer/redistribute.py uses. One line of JSON on rank 0, nothing on
/// others.
/// Collective: all ranks of the job.
std::optional<std::string> run_redistribute();

} // namespace weft::recipes::bench
