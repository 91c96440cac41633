#pragma once

#include <string>

#include "base/unique_fd.h"

namespace weft::launcher {

/// Keeps the port at which the workers will meet rank 0 from before the first
/// of them starts, without listening there: see Note [Reserved master port].
/// Rank 0 inherits the socket, and listens on it or on its own.
class MasterSocket {
 public:
  /// Binds `address`; port 0 takes any free one.
  /// Throws: LaunchError if the port is in use (naming the process that has
  /// it, where /proc shows it) or the address is not this host's.
  MasterSocket(const std::string& address, int port);

  int fd() const { return fd_.get(); }
  int port() const { return port_; }
  /// Leaves the socket to rank 0 alone, so that it closes when rank 0 ends.
  void close() { fd_.reset(); }

 private:
  void claim();

  base::UniqueFd fd_;
  base::UniqueFd claim_;
  int port_ = 0;
};

/// " by process 12 (name)" for the process that listens at the TCP port or, a
/// launcher, keeps it; or an empty string.
std::string describe_port_owner(int port);

} // namespace weft::launcher
