#pragma once

#include <string>

#include "launcher/unique_fd.h"

namespace weft::launcher {

/// The socket at which the workers will meet rank 0, listening from before the
/// first worker starts: nobody else can take the port in between. Rank 0
/// inherits it.
class MasterSocket {
 public:
  /// Listens at `address`; port 0 takes any free one.
  /// Throws: LaunchError if the port is in use (naming the process that
  /// listens there, where /proc shows it) or the address is not this host's.
  MasterSocket(const std::string& address, int port);

  int fd() const { return fd_.get(); }
  int port() const { return port_; }
  /// Leaves the socket to rank 0 alone, so that it closes when rank 0 ends.
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  int port_ = 0;
};

/// " by process 12 (name)" for the process that listens at the TCP port, or
/// an empty string.
std::string describe_port_owner(int port);

} // namespace weft::launcher
