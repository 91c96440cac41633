#pragma once

#include <chrono>
#include <optional>

#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Whether starting again may help: a death by a signal, a lost peer, a
/// preemption (128 and above), or 1, with which programs that know nothing of
/// Weft's codes fail. 2 to 127 say what will be the same next time.
bool is_retryable(int code);

/// Decides after each failed attempt.
class RestartPolicy {
 public:
  explicit RestartPolicy(int most) : max_(most) {}

  int count() const { return count_; }
  /// Adds to the verdict of a failed attempt, which ran for `lasted`, whether
  /// it goes on: after 1 s, 2 s, 4 s ... 30 s, from the beginning again once an
  /// attempt has lasted. Giving up, it goes back to the first error of the row.
  void decide(RunResult& run_result, std::chrono::milliseconds lasted);

 private:
  struct First {
    int attempt;
    int code;
    std::string line;
  };
  int max_;
  int count_ = 0;
  std::chrono::milliseconds delay_{0};
  std::optional<First> first_;
};

} // namespace weft::launcher
