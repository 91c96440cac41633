#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/socket.h>

namespace weft::base {

/// An address and a port as connect() takes them.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

/// Returns the socket address of a numeric IPv4 or IPv6 address, such as "::1".
/// Returns nothing for any other text. Asks no name server.
std::optional<SocketAddress> numeric_address(
    const std::string& address,
    uint16_t port);

} // namespace weft::base
