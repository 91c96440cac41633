#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft::checkpoint {

/// Holds a writer to so many bytes a second.
class Pace {
 public:
  /// 0: any.
  explicit Pace(int64_t bytes_per_second)
      : bytes_per_second_(bytes_per_second), next_(Clock::now()) {}

  /// Waits until the bytes that were spent before have had their time. A pause
  /// of the writer is not made up for.
  void spend(int64_t bytes) {
    if (bytes_per_second_ <= 0) {
      return;
    }
    std::this_thread::sleep_until(next_);
    next_ = std::max(next_, Clock::now()) +
            std::chrono::duration_cast<Clock::duration>(
                std::chrono::duration<double>(
                    static_cast<double>(bytes) /
                    static_cast<double>(bytes_per_second_)));
  }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t bytes_per_second_;
  Clock::time_point next_;
};

} // namespace weft::checkpoint
