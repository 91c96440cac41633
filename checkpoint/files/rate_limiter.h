#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft::checkpoint {

/// Holds a writer to so many bytes a second.
class Pace {
 public:
  /// 0: any. Once `hurries` (may be null; outlives this) is set: any, too.
  Pace(int64_t bytes_per_second, const std::atomic<bool>* hurries)
      : bytes_per_second_(bytes_per_second),
        hurries_(hurries),
        next_(Clock::now()) {}

  /// Waits until the bytes that were spent before have had their time. A pause
  /// of the writer is not made up for.
  void spend(int64_t bytes) {
    if (bytes_per_second_ <= 0) {
      return;
    }
    while (Clock::now() < next_) {
      if (hurries_ && *hurries_) {
        return;
      }
      std::this_thread::sleep_until(std::min(next_, Clock::now() + kGlance));
    }
    next_ = std::max(next_, Clock::now()) +
            std::chrono::duration_cast<Clock::duration>(
                std::chrono::duration<double>(
                    static_cast<double>(bytes) /
                    static_cast<double>(bytes_per_second_)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kGlance{20};
  int64_t bytes_per_second_;
  const std::atomic<bool>* hurries_;
  Clock::time_point next_;
};

} // namespace weft::checkpoint
