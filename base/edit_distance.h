#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::base {

/// Returns the number of insertions, deletions, replacements and swaps of
/// adjacent characters that turn `a` into `b`. If a string has more than 64
/// characters, returns the length of the longer one.
/// Source: Damerau (1964), in the optimal string alignment variant.
inline int64_t edit_distance(std::string_view a, std::string_view b) {
  constexpr size_t kMax = 64; // Beyond it, no name is near.
  if (a.size() > kMax || b.size() > kMax) {
    return static_cast<int64_t>(std::max(a.size(), b.size()));
  }
  std::vector<int64_t> before(b.size() + 1);
  std::vector<int64_t> last(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<int64_t> now(b.size() + 1);
    now[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({replaced, last[j] + 1, now[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before = std::move(last);
    last = std::move(now);
  }
  return last[b.size()];
}

} // namespace weft::base
