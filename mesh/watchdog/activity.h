#pragma once

#include <cstdint>
#include <string>

namespace weft::mesh {

/// Notes what this process does, for ranks that wait for it: "forward" of step
/// 12. `what` is a string literal; null: nothing worth a note. Costs some
/// nanoseconds.
void note_activity(const char* what, int64_t step);

/// "forward of step 12"; empty if nothing was noted.
std::string activity_text();

} // namespace weft::mesh
