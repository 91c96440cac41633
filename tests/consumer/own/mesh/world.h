#pragma once

#include <string_view>

// A header of the project with the path of one of Weft's, which <weft/...>
// headers must not take for it.
inline constexpr std::string_view kOwnWorld = "own world";
