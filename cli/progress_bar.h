#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "checkpoint/files/progress.h"

namespace weft::cli {

/// The progress of a long operation, redrawn in place on a terminal. Shows
/// nothing otherwise.
class ProgressBar {
 public:
  struct Options {
    /// The operation: "verifying".
    std::string verb;
    bool is_shown = false;
    /// The width of the terminal in columns. 0 means that it is queried each
    /// time.
    int64_t columns = 0;
  };

  /// Lifetime: `out` must outlive this object.
  ProgressBar(std::FILE* out, Options options);
  /// Shows progress on stderr, if it is a terminal and `is_wanted`.
  ProgressBar(std::string verb, bool is_wanted);
  /// Erases the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(int64_t done, int64_t total, std::string_view what);
  /// Returns the callback. Empty if nothing is shown.
  /// Lifetime: this object must outlive it.
  checkpoint::Progress callback();
  /// Must be called before printing a line. The bar reappears at the next
  /// update.
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

/// Returns "verifying  42% of 1.5 GiB  310.2 MB/s
/// shard-00000-00000.safetensors", at most `columns` wide.
std::string progress_line(
    std::string_view verb,
    int64_t done,
    int64_t total,
    double bytes_per_s,
    std::string_view what,
    int64_t columns);

} // namespace weft::cli
