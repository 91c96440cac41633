#include "tests/integration/own_address.h"

#include <array>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

namespace weft::test {

std::string own_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return "";
  }
  std::string result;
  for (const auto* one = all; one != nullptr; one = one->ifa_next) {
    std::array<char, NI_MAXHOST> text{};
    if (result.empty() && one->ifa_addr != nullptr &&
        one->ifa_addr->sa_family == AF_INET &&
        (one->ifa_flags & IFF_LOOPBACK) == 0 &&
        getnameinfo(
            one->ifa_addr,
            sizeof(sockaddr_in),
            text.data(),
            text.size(),
            nullptr,
            0,
            NI_NUMERICHOST) == 0) {
      result = text.data();
    }
  }
  freeifaddrs(all);
  return result;
}

} // namespace weft::test
