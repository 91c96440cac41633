#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "checkpoint/files/progress.h"

namespace weft::recipes::cli {

/// How far long work is, redrawn in place on a terminal; nothing elsewhere.
class ProgressBar {
 public:
  struct Options {
    /// What is done: "verifying".
    std::string verb;
    bool is_shown = false;
    /// Columns of the terminal; 0: ask it, each time.
    int64_t columns = 0;
  };

  /// Lifetime: `out` outlives this.
  ProgressBar(std::FILE* out, Options options);
  /// On stderr, if that is a terminal and the user wants it.
  ProgressBar(std::string verb, bool is_wanted);
  /// Leaves no trace.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(int64_t done, int64_t total, std::string_view what);
  /// Empty where nothing is shown. Lifetime: this outlives it.
  checkpoint::Progress callback();
  /// Before a line is printed; the bar comes back by itself.
  void erase();

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* out_;
  Options options_;
  bool is_drawn_ = false;
  int64_t last_done_ = 0;
  Clock::time_point began_;
  Clock::time_point drawn_at_{};
};

/// "verifying  42% of 1.5 GiB  310.2 MB/s  shard-00000-00000.safetensors", at
/// most `columns` wide.
std::string progress_line(
    std::string_view verb,
    int64_t done,
    int64_t total,
    double bytes_per_s,
    std::string_view what,
    int64_t columns);

} // namespace weft::recipes::cli
