#pragma once

#include <string>

namespace weft::base {

/// Returns the loopback address that connections within this host use:
/// "127.0.0.1", or "::1" if the loopback interface has no IPv4 address. Returns
/// "127.0.0.1" if neither can be reached.
std::string loopback_address();

/// Returns why no connection to the numeric loopback address can succeed, e.g.
/// because the loopback interface is down, and how to change that. Returns an
/// empty string if this host has a route to the address. Sends nothing.
std::string loopback_fault(const std::string& address);

} // namespace weft::base
