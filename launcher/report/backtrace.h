#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// Turns the frames of a crash, one a line as `#3 /lib/libx.so(+0x1234)
/// _ZN1x1yEv+0x12`, into lines to read, `#3 x::y() in libx.so`: names that the
/// process could not find are looked up in the file, C++ names are demangled.
/// The frames of how a process aborts are left out, and so are those past
/// `most`.
std::vector<std::string> readable_frames(
    std::string_view callstack,
    size_t most);

} // namespace weft::launcher
