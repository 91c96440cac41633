#pragma once

#include <string>

#include "base/unique_fd.h"

namespace weft::launcher {

/// Reserves MASTER_PORT before the workers start, without listening on it; see
/// Note [Reserved master port]. Rank 0 inherits the socket, and listens on it
/// or on a socket of its own.
class MasterSocket {
 public:
  /// Binds `address`. Port 0 selects any free port.
  /// Throws: LaunchError if the port is in use (naming the process if /proc
  /// shows it), or if the address is not this host's.
  MasterSocket(const std::string& address, int port);

  int fd() const { return fd_.get(); }
  int port() const { return port_; }
  /// Closes the launcher's descriptor, so that the socket closes when rank 0
  /// ends.
  void close() { fd_.reset(); }

 private:
  void bind_to(const std::string& address, int port);
  /// Returns false if another launcher claims the port.
  bool claim();

  base::UniqueFd fd_;
  base::UniqueFd claim_;
  int port_ = 0;
};

/// Returns " by process 12 (name)" for the process that listens on the TCP
/// port, or for the launcher that reserves it. Empty if it is not known.
std::string describe_port_owner(int port);

} // namespace weft::launcher
