#pragma once

#include <optional>
#include <string>

#include <sys/socket.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// A TCP address and port, IPv4 or IPv6.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  int port() const;
  bool is_loopback() const;
  /// Returns the numeric address, e.g. "10.0.0.2".
  std::string host() const;
};

/// Returns the first address of a host name or numeric address. If there is
/// none, returns nullopt and sets `why` to the reason.
std::optional<Address>
resolve(const std::string& host, int port, std::string& why);

Address loopback(int port);
Address own_address(int fd);
Address peer_address(int fd);

/// Returns a non-blocking listening socket. On failure returns an empty
/// descriptor and sets errno.
base::UniqueFd listen_at(const Address& address);
/// Returns a non-blocking socket that is connecting. If that fails at once,
/// returns an empty descriptor and sets errno.
base::UniqueFd start_connecting(const Address& address);
/// Accepts the next connection as a non-blocking socket. Empty if there is
/// none.
base::UniqueFd accept_one(int listener);

} // namespace weft::launcher
