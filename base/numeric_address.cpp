#include "base/numeric_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace weft::base {

std::optional<SocketAddress> numeric_address(
    const std::string& address,
    uint16_t port) {
  SocketAddress target;
  auto& v4 = reinterpret_cast<sockaddr_in&>(target.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(target.storage);
  if (inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    target.size = sizeof(sockaddr_in);
    return target;
  }
  if (inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    target.size = sizeof(sockaddr_in6);
    return target;
  }
  return std::nullopt;
}

} // namespace weft::base
