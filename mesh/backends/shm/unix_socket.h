#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "mesh/bootstrap/cancellation.h"

// Sockets between processes of one host and one user, to hand descriptors
// over. Names are abstract: no file, gone with their socket.

namespace weft::mesh {

/// One message: bytes and file descriptors.
struct SocketMessage {
  std::string bytes;
  std::vector<base::UniqueFd> descriptors;
};

/// What ends a wait at a socket.
struct SocketLimit {
  std::chrono::steady_clock::time_point deadline;
  Cancellation cancellation;
};

/// A listening socket with a random name that only this process knows.
struct UnixListener {
  std::string name;
  base::UniqueFd socket;
};

/// Listens on a new abstract socket.
/// Throws: CommError with the system's reason.
UnixListener listen_unix(int backlog);
/// Accepts a connection from a process of the same user.
/// Throws: CommError with the system's reason, or if no peer connects in time.
base::UniqueFd accept_unix(
    const UnixListener& listener,
    const SocketLimit& limit);
base::UniqueFd connect_unix(const std::string& name);

/// Sends at most 1024 bytes and 250 descriptors.
/// Throws: CommError with the system's reason.
void send_message(
    const base::UniqueFd& socket,
    const std::string& bytes,
    const std::vector<int>& descriptors = {});
/// Receives one message.
/// Throws: CommError with the system's reason, or if nothing arrives in time or
/// the peer closed the connection.
SocketMessage receive_message(
    const base::UniqueFd& socket,
    const SocketLimit& limit);

/// Throws CommError "[shared memory] <what>: <text of errno>".
[[noreturn]] void throw_system_error(const char* what);

} // namespace weft::mesh
