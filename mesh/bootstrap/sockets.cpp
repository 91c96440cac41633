#include "mesh/bootstrap/sockets.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/loopback.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct AddressList {
  addrinfo* first = nullptr;
  AddressList(const std::string& host, uint16_t port, int type) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = type;
    const int failed =
        getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
    if (failed != 0) {
      throw_error<CommError>(detail::concat(
          "[rendezvous] cannot resolve ",
          host,
          ": ",
          gai_strerror(failed),
          ". Set MASTER_ADDR to a name or address of rank 0's host that this "
          "host can resolve."));
    }
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() { freeaddrinfo(first); }
};

bool turn(const Socket& socket, int level, int option, int value) {
  return setsockopt(socket.fd(), level, option, &value, sizeof(value)) == 0;
}

/// Returns the listening socket, or -1 with errno set.
int try_to_listen(const sockaddr* address, socklen_t size) {
  Socket listener(
      ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  // An IPv6 socket without IPV6_V6ONLY accepts IPv4 connections, too.
  const bool listens = listener.fd() >= 0 &&
                       turn(listener, SOL_SOCKET, SO_REUSEADDR, 1) &&
                       (address->sa_family != AF_INET6 ||
                        turn(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0)) &&
                       bind(listener.fd(), address, size) == 0 &&
                       listen(listener.fd(), SOMAXCONN) == 0;
  return listens ? listener.release() : -1;
}

int try_to_listen_everywhere(uint16_t port) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  any.sin6_port = htons(port);
  const int fd =
      try_to_listen(reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  if (fd >= 0 || errno == EADDRINUSE || errno == EACCES) {
    return fd;
  }
  // The kernel may have no IPv6.
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = htons(port);
  return try_to_listen(reinterpret_cast<const sockaddr*>(&any4), sizeof(any4));
}

} // namespace

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" ||
         address.starts_with("127.");
}

std::string loopback_number(const std::string& address) {
  return address == "localhost" ? base::loopback_address() : address;
}

std::string local_address_towards(const std::string& address) {
  const AddressList found(address, 9, SOCK_DGRAM);
  const Socket socket(
      ::socket(found.first->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  char text[NI_MAXHOST] = {};
  // Connecting a datagram socket only chooses the route.
  const bool has_route =
      socket.fd() >= 0 &&
      connect(socket.fd(), found.first->ai_addr, found.first->ai_addrlen) ==
          0 &&
      getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &size) == 0;
  const int error = errno;
  const int name_error = !has_route ? 0
                                    : getnameinfo(
                                          reinterpret_cast<sockaddr*>(&own),
                                          size,
                                          text,
                                          sizeof(text),
                                          nullptr,
                                          0,
                                          NI_NUMERICHOST);
  if (!has_route || name_error != 0) {
    throw_error<CommError>(detail::concat(
        "[rendezvous] there is no route to ",
        address,
        ": ",
        has_route ? gai_strerror(name_error) : std::strerror(error)));
  }
  return text;
}

int listen_at(const std::string& address, uint16_t port) {
  int fd = -1;
  if (address.empty()) {
    fd = try_to_listen_everywhere(port);
  } else {
    const AddressList found(address, port, SOCK_STREAM);
    fd = try_to_listen(found.first->ai_addr, found.first->ai_addrlen);
  }
  if (fd < 0) {
    throw_error<CommError>(detail::concat(
        "[rendezvous] cannot listen at ",
        address.empty() ? "port " : address + ":",
        port,
        ": ",
        std::strerror(errno)));
  }
  return fd;
}

uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  // sin_port and sin6_port have the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

} // namespace weft::mesh
