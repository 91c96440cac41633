#pragma once

#include <string>

namespace weft::test {

/// An IPv4 address of this machine that is not loopback, or "".
std::string own_address();

} // namespace weft::test
