#include "base/loopback.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <sys/socket.h>

#include "base/numeric_address.h"
#include "base/unique_fd.h"

namespace weft::base {
namespace {

constexpr uint16_t kAnyPort = 9;

// Returns 0 if there is a route to the address, otherwise errno. connect() of a
// datagram socket chooses the route and sends nothing.
int route_error(const std::string& address) {
  const auto target = numeric_address(address, kAnyPort);
  if (!target) {
    return EINVAL;
  }
  const UniqueFd fd(
      socket(target->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const bool has_route =
      fd && connect(fd.get(), target->get(), target->size) == 0;
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
