#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

// Sockets between processes of one host and one user, to hand descriptors
// over. Names are abstract: no file, gone with their socket.

namespace weft::mesh {

/// Owns a file descriptor and closes it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// One message: bytes and file descriptors.
struct SocketMessage {
  std::string bytes;
  std::vector<Descriptor> descriptors;
};

using SocketDeadline = std::chrono::steady_clock::time_point;

/// A listening socket with a random name that only this process knows.
struct UnixListener {
  std::string name;
  Descriptor socket;
};

/// Listens on a new abstract socket.
/// Throws: CommError with the system's reason.
UnixListener listen_unix(int backlog);
/// Accepts a connection from a process of the same user.
/// Throws: CommError with the system's reason, or if no peer connects in time.
Descriptor accept_unix(const UnixListener& listener, SocketDeadline deadline);
Descriptor connect_unix(const std::string& name);

/// Sends at most 1024 bytes and 250 descriptors.
/// Throws: CommError with the system's reason.
void send_message(
    const Descriptor& socket,
    const std::string& bytes,
    const std::vector<int>& descriptors = {});
/// Receives one message.
/// Throws: CommError with the system's reason, or if nothing arrives in time or
/// the peer closed the connection.
SocketMessage receive_message(
    const Descriptor& socket,
    SocketDeadline deadline);

/// Throws CommError "[shared memory] <what>: <text of errno>".
[[noreturn]] void throw_system_error(const char* what);

} // namespace weft::mesh
