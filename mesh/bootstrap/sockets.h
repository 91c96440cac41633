#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::mesh {

bool is_loopback(std::string_view address);

/// The number of a loopback address: "localhost" may resolve to addresses where
/// nobody listens.
std::string loopback_number(const std::string& address);

/// This host's address on the way to `address`, e.g. "10.0.0.3". Sends nothing.
/// Throws: CommError if there is no way.
std::string local_address_towards(const std::string& address);

/// A socket that listens at `port` of `address`; of every address of this host,
/// of both families, if it is empty. The caller closes it.
/// Throws: CommError naming both, without the way out.
int listen_at(const std::string& address, uint16_t port);

/// The port a socket is bound to, or 0.
uint16_t port_of(int fd);

} // namespace weft::mesh
