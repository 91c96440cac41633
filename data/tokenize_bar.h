#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "data/tokenize.h"

namespace weft::recipes {

/// Shows how far text has become tokens: on a terminal a bar that is redrawn in
/// place, else a line each tenth, but none within two seconds.
class TokenizeBar {
 public:
  /// Lifetime: `out` outlives this.
  TokenizeBar(std::FILE* out, bool is_terminal);
  /// Leaves the cursor on a line of its own.
  ~TokenizeBar();
  TokenizeBar(const TokenizeBar&) = delete;
  TokenizeBar& operator=(const TokenizeBar&) = delete;

  void show(const TokenizeProgress& progress);

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* out_;
  bool is_terminal_;
  bool bar_is_drawn_ = false;
  int64_t tenths_ = 0;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point drawn_at_ = begun_;
};

/// "12.3/84.2 MB  3.1 M tokens  10.2 MB/s".
std::string tokenize_line(const TokenizeProgress& progress, double seconds);

} // namespace weft::recipes
