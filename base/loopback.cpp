#include "base/loopback.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/unique_fd.h"

namespace weft::base {
namespace {

constexpr uint16_t kAnyPort = 9;

// Returns 0 if there is a route to the address, else errno. Connecting a
// datagram socket only chooses the route.
int route_error(const std::string& address) {
  sockaddr_storage target{};
  socklen_t size = sizeof(sockaddr_in);
  auto& v4 = reinterpret_cast<sockaddr_in&>(target);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(target);
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(kAnyPort);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(kAnyPort);
    size = sizeof(sockaddr_in6);
  } else {
    return EINVAL;
  }
  const UniqueFd fd(socket(target.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const bool has_route =
      fd &&
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&target), size) == 0;
  return has_route ? 0 : errno;
}

} // namespace

std::string loopback_address() {
  const std::string first = "127.0.0.1";
  return route_error(first) != 0 && route_error("::1") == 0 ? "::1" : first;
}

std::string loopback_fault(const std::string& address) {
  const int error = route_error(address);
  if (error == 0) {
    return "";
  }
  return fmt::format(
      "this host has no route to its own loopback address {}: {}. Bring the "
      "loopback interface up (ip link set lo up), or set MASTER_ADDR "
      "(--master-addr) to another address of this host",
      address,
      std::strerror(error));
}

} // namespace weft::base
