#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace weft::recipes::bench {

/// A line of /proc/self/status, "VmRSS" or "VmHWM". Units: bytes; 0 if it has
/// none of that name.
inline int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == name + ":") {
      int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

/// Makes "VmHWM" what is resident now.
inline void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

} // namespace weft::recipes::bench
