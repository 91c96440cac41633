#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// Converts the frames of a crash, one per line as `#3 /lib/libx.so(+0x1234)
/// _ZN1x1yEv+0x12`, to readable lines, `#3 x::y() in libx.so`. Symbols that the
/// process could not find are looked up in the file, and C++ names are
/// demangled. Omits the frames of the abort itself and the frames beyond
/// `most`.
std::vector<std::string> readable_frames(
    std::string_view callstack,
    size_t most);

} // namespace weft::launcher
