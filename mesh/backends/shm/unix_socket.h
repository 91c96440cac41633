#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

// Sockets between processes of one host and one user, to hand descriptors
// over. Names are abstract: no file, gone with their socket.

namespace weft::mesh {

/// A file descriptor and its end.
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

/// What one side tells the other: some bytes and descriptors.
struct SocketMessage {
  std::string bytes;
  std::vector<Descriptor> descriptors;
};

using SocketDeadline = std::chrono::steady_clock::time_point;

/// A socket under a random name that no other process knows.
struct UnixListener {
  std::string name;
  Descriptor socket;
};

/// All throw CommError with the system's reason.
UnixListener listen_unix(int backlog);
/// Lets nobody in but this user's processes.
/// Throws: CommError also if none comes in time.
Descriptor accept_unix(const UnixListener& listener, SocketDeadline deadline);
Descriptor connect_unix(const std::string& name);

/// At most 1024 bytes and 250 descriptors.
void send_message(
    const Descriptor& socket,
    const std::string& bytes,
    const std::vector<int>& descriptors = {});
/// Throws: CommError also if nothing comes in time or the other side hung up.
SocketMessage receive_message(
    const Descriptor& socket,
    SocketDeadline deadline);

/// Throws: CommError "[shared memory] <what>: <errno's text>".
[[noreturn]] void throw_system_error(const char* what);

} // namespace weft::mesh
