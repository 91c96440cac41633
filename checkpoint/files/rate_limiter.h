#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft::checkpoint {

/// Limits a writer to a number of bytes per second.
class RateLimiter {
 public:
  /// 0 means no limit. Setting `*is_unthrottled` lifts the limit; the pointer
  /// may be null.
  /// Lifetime: `is_unthrottled` must outlive this object.
  RateLimiter(int64_t bytes_per_second, const std::atomic<bool>* is_unthrottled)
      : bytes_per_second_(bytes_per_second),
        is_unthrottled_(is_unthrottled),
        next_(Clock::now()) {}

  /// Blocks until the bytes of earlier calls fit the limit. Time in which the
  /// writer was idle is not credited.
  void acquire(int64_t bytes) {
    if (bytes_per_second_ <= 0) {
      return;
    }
    while (Clock::now() < next_) {
      if (is_unthrottled_ && *is_unthrottled_) {
        return;
      }
      std::this_thread::sleep_until(
          std::min(next_, Clock::now() + kPollInterval));
    }
    next_ = std::max(next_, Clock::now()) +
            std::chrono::duration_cast<Clock::duration>(
                std::chrono::duration<double>(
                    static_cast<double>(bytes) /
                    static_cast<double>(bytes_per_second_)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPollInterval{20};
  int64_t bytes_per_second_;
  const std::atomic<bool>* is_unthrottled_;
  Clock::time_point next_;
};

} // namespace weft::checkpoint
