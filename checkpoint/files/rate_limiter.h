#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft::checkpoint {

/// Holds a writer to so many bytes a second.
class RateLimiter {
 public:
  /// 0: any. Once `is_unthrottled` (may be null; outlives this) is set: any,
  /// too.
  RateLimiter(int64_t bytes_per_second, const std::atomic<bool>* is_unthrottled)
      : bytes_per_second_(bytes_per_second),
        is_unthrottled_(is_unthrottled),
        next_(Clock::now()) {}

  /// Waits until the bytes that were spent before have had their time. A pause
  /// of the writer is not made up for.
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
