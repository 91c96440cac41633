#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace weft::recipes::bench {

/// Microseconds that one of `calls` calls of `op` takes.
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

/// To a multiple of 1 / `digits`, e.g. 1e2: two decimals.
inline double rounded(double value, double digits) {
  return std::round(value * digits) / digits;
}

} // namespace weft::recipes::bench
