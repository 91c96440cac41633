#pragma once

#include <chrono>
#include <optional>

#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Returns true if a restart may help: after death by a signal, a lost peer or
/// a preemption (128 and above), or after 1, with which programs without Weft's
/// exit codes fail. 2 to 127 mean that a restart would fail in the same way.
bool is_retryable(int code);

/// Decides about a restart after each failed attempt.
class RestartPolicy {
 public:
  /// An attempt that ran for `lasting` was no failure to start.
  explicit RestartPolicy(
      int most,
      std::chrono::milliseconds lasting = std::chrono::seconds(60))
      : max_(most), lasting_(lasting) {}

  int count() const { return count_; }
  /// Decides whether to restart after a failed attempt that ran for `lasted`,
  /// and adds the decision to `run_result`. The delays are 1 s, 2 s, 4 s, ...
  /// 30 s; they start over after an attempt that ran for `lasting`. After the
  /// last attempt the result is the first error of the series.
  void decide(RunResult& run_result, std::chrono::milliseconds lasted);

 private:
  struct First {
    int attempt;
    int code;
    std::string line;
  };
  int max_;
  std::chrono::milliseconds lasting_;
  int count_ = 0;
  std::chrono::milliseconds delay_{0};
  std::optional<First> first_;
};

} // namespace weft::launcher
