#include "mesh/backends/shm/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "mesh/error/error.h"
#include "mesh/error/resource_limits.h"

namespace weft::mesh {
namespace {

constexpr size_t kLongest = 1024;
constexpr size_t kMaxDescriptors = 250;

base::UniqueFd checked(int fd, const char* what) {
  if (fd < 0) {
    throw_system_error(what);
  }
  return base::UniqueFd(fd);
}

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    // A leading zero byte selects the abstract namespace, in which sockets have
    // no file.
    const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), size);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
};

std::string random_name() {
  std::random_device random;
  std::string name = "weft";
  for (int i = 0; i < 4; ++i) {
    name += "-" + std::to_string(random());
  }
  return name;
}

void wait_readable(int fd, const SocketLimit& limit) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit.deadline - std::chrono::steady_clock::now());
    std::array<pollfd, 2> polls{
        {{fd, POLLIN, 0}, {limit.cancellation.descriptor(), POLLIN, 0}}};
    const int ready = ::poll(
        polls.data(),
        polls.size(),
        static_cast<int>(std::max<int64_t>(left.count(), 0)));
    limit.cancellation.check();
    if (ready > 0) {
      return;
    }
    if (ready == 0) {
      throw_error<TimeoutError>(
          "[shared memory] timed out while waiting for another rank at the "
          "rendezvous");
    }
    if (errno != EINTR) {
      throw_system_error("poll");
    }
  }
}

bool is_own_users(const base::UniqueFd& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    throw_system_error("SO_PEERCRED");
  }
  return peer.uid == ::geteuid();
}

struct ControlBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
};

std::vector<base::UniqueFd> descriptors_of(msghdr& message) {
  std::vector<base::UniqueFd> result;
  for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      result.emplace_back(fd);
    }
  }
  return result;
}

} // namespace

void throw_system_error(const char* what) {
  const int error = errno;
  throw_error<CommError>(detail::concat(
      "[shared memory] ",
      what,
      ": ",
      std::strerror(error),
      limit_behind(error)));
}

UnixListener listen_unix(int backlog) {
  UnixListener listener;
  listener.name = random_name();
  // SOCK_SEQPACKET keeps message boundaries.
  listener.socket =
      checked(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
  const Address at(listener.name);
  if (::bind(listener.socket.get(), at.get(), at.length) != 0) {
    throw_system_error("bind");
  }
  if (::listen(listener.socket.get(), backlog) != 0) {
    throw_system_error("listen");
  }
  return listener;
}

base::UniqueFd accept_unix(
    const UnixListener& listener,
    const SocketLimit& limit) {
  while (true) {
    wait_readable(listener.socket.get(), limit);
    auto socket = checked(
        ::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC),
        "accept");
    if (is_own_users(socket)) {
      return socket;
    }
  }
}

base::UniqueFd connect_unix(const std::string& name) {
  auto socket =
      checked(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
  const Address at(name);
  if (::connect(socket.get(), at.get(), at.length) != 0) {
    throw_system_error("connect");
  }
  if (!is_own_users(socket)) {
    throw_error<CommError>(
        "[shared memory] the process that listens on this group's Unix socket "
        "runs as another user than this rank. Start all ranks of a host as the "
        "same user.");
  }
  return socket;
}

void send_message(
    const base::UniqueFd& socket,
    const std::string& bytes,
    const std::vector<int>& descriptors) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t size = sizeof(int) * descriptors.size();
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), descriptors.data(), size);
  }
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) {
    throw_system_error("sendmsg");
  }
}

SocketMessage receive_message(
    const base::UniqueFd& socket,
    const SocketLimit& limit) {
  wait_readable(socket.get(), limit);
  SocketMessage result;
  result.bytes.resize(kLongest);
  iovec data{result.bytes.data(), result.bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t size = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (size < 0) {
    throw_system_error("recvmsg");
  }
  result.descriptors = descriptors_of(message);
  if (size == 0) {
    throw_error<CommError>(
        "[shared memory] another rank closed the connection at the rendezvous");
  }
  result.bytes.resize(static_cast<size_t>(size));
  return result;
}

} // namespace weft::mesh
