#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "data/tokenize.h"

namespace weft::data {

/// Shows the progress of tokenization: a bar that is redrawn in place on a
/// terminal; otherwise a line every 10 %, at most one in 2 s.
class TokenizeBar {
 public:
  /// Lifetime: `out` must outlive this object.
  TokenizeBar(std::FILE* out, bool is_terminal);
  /// Ends the line of the bar.
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

/// Returns "12.3/84.2 MB  3.1 M tokens  10.2 MB/s".
std::string tokenize_line(const TokenizeProgress& progress, double seconds);

} // namespace weft::data
