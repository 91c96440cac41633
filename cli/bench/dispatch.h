#pragma once

#include <string>

namespace weft::recipes::bench {

/// Times ops on small DTensors against the same ops on plain tensors, in turn,
/// on one thread: `<op>_local_us` and `<op>_dtensor_us`, medians in
/// microseconds, under the names that bench/peer/dispatch.py uses. One line of
/// JSON. `only` leaves out all but one, e.g. "mm_grad", for a profiler.
std::string run_dispatch(const std::string& only = {});

} // namespace weft::recipes::bench
