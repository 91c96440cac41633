#pragma once

#include <ctime>

#include "lighthouse/messages.h"

namespace weft::lighthouse {

/// The time of this host, which goes on while the machine is suspended.
inline Time now() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return std::chrono::seconds(time.tv_sec) +
         std::chrono::nanoseconds(time.tv_nsec);
}

} // namespace weft::lighthouse
