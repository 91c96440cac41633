#pragma once

#include <cstdint>
#include <string>

namespace weft::mesh {

/// Records what this process does, for messages on ranks that wait for it:
/// "forward" of step 12. `what` must be a string literal; null clears the
/// record. Takes a few nanoseconds.
void note_activity(const char* what, int64_t step);

/// Returns "forward of step 12", or "" if nothing is recorded.
std::string activity_text();

} // namespace weft::mesh
