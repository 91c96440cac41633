#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::mesh {

bool is_loopback(std::string_view address);

/// Returns the numeric form of a loopback address. "localhost" may resolve to
/// several addresses, not all of which are listened on.
std::string loopback_number(const std::string& address);

/// Returns this host's address on the route to `address`, e.g. "10.0.0.3".
/// Sends nothing.
/// Throws: CommError if there is no route.
std::string local_address_towards(const std::string& address);

/// Returns a socket that listens on `port` of `address`, or of all IPv4 and
/// IPv6 addresses if `address` is empty. The caller closes it.
/// Throws: CommError naming the address and the port.
int listen_at(const std::string& address, uint16_t port);

/// Returns the port that a socket is bound to, or 0.
uint16_t port_of(int fd);

} // namespace weft::mesh
