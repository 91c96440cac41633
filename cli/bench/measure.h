#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace weft::cli::bench {

/// Returns the time of one of `calls` calls of `op` in microseconds.
template <class Op>
double microseconds(const Op& op, int calls = 1) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    op();
  }
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now() - start)
             .count() /
         calls;
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

/// Rounds to a multiple of 1 / `digits`: 1e2 keeps two decimals.
inline double rounded(double value, double digits) {
  return std::round(value * digits) / digits;
}

/// Returns a value of /proc/self/status, "VmRSS" or "VmHWM", in bytes. 0 if
/// there is none of that name.
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

/// Resets "VmHWM" to the current resident memory.
inline void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

} // namespace weft::cli::bench
