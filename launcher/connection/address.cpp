#include "launcher/connection/address.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "base/loopback.h"

namespace weft::launcher {
namespace {

void turn_on(int fd, int level, int option) {
  const int on = 1;
  setsockopt(fd, level, option, &on, sizeof(on));
}

base::UniqueFd open_socket(const Address& address) {
  return base::UniqueFd(socket(
      address.storage.ss_family,
      SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
      0));
}

} // namespace

int Address::port() const { // at the same place in both families
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

bool Address::is_loopback() const {
  const std::string text = host();
  return text.starts_with("127.") || text == "::1";
}

std::string Address::host() const {
  char text[NI_MAXHOST] = "";
  getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::optional<Address>
resolve(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    why = gai_strerror(error);
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(
      found, &freeaddrinfo);
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  return address;
}

Address loopback(int port) {
  std::string why;
  const auto address = resolve(base::loopback_address(), port, why);
  return address ? *address : Address();
}

Address own_address(int fd) {
  Address address;
  address.size = sizeof(address.storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

Address peer_address(int fd) {
  Address address;
  address.size = sizeof(address.storage);
  getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

base::UniqueFd listen_at(const Address& address) {
  base::UniqueFd fd = open_socket(address);
  turn_on(fd.get(), SOL_SOCKET, SO_REUSEADDR);
  if (!fd || bind(fd.get(), address.get(), address.size) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

base::UniqueFd start_connecting(const Address& address) {
  base::UniqueFd fd = open_socket(address);
  turn_on(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  if (connect(fd.get(), address.get(), address.size) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

base::UniqueFd accept_one(int listener) {
  base::UniqueFd fd(
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    turn_on(fd.get(), IPPROTO_TCP, TCP_NODELAY);
  }
  return fd;
}

} // namespace weft::launcher
