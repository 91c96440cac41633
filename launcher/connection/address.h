#pragma once

#include <optional>
#include <string>

#include <sys/socket.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// An address and port of TCP, of either family.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  int port() const;
  bool is_loopback() const;
  /// The number, e.g. "10.0.0.2".
  std::string host() const;
};

/// The first address of a name or number. Nothing, and `why`, if there is none.
std::optional<Address>
resolve(const std::string& host, int port, std::string& why);

Address loopback(int port);
Address own_address(int fd);
Address peer_address(int fd);

/// A listening socket that does not block; empty, and errno, if that fails.
base::UniqueFd listen_at(const Address& address);
/// A socket that does not block, connecting; empty, and errno, if that fails at
/// once.
base::UniqueFd start_connecting(const Address& address);
/// The next connection, not blocking; empty if there is none.
base::UniqueFd accept_one(int listener);

} // namespace weft::launcher
