#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Why somebody was turned away at the gate.
enum class AuthFailure {
  kTooMany,
  kNoAnswer,
  kLate,
  kNoWeftrun,
  kEarlierStart,
  kOtherToken,
  kOtherJob
};

/// Says who was turned away, and what to do about it: each address and reason
/// at once when it is new, everything else now and then, so that strangers
/// cannot fill the log.
class AuthFailureLog {
 public:
  explicit AuthFailureLog(LogLine log_line);

  /// `host` is an address; empty: it is not known any more.
  void note(const std::string& host, AuthFailure refusal);
  /// The last that may have been a host of this run, as "10.0.0.2 (another
  /// token)"; empty: none.
  const std::string& likely_host() const { return likely_host_; }

 private:
  using Clock = std::chrono::steady_clock;

  LogLine log_line_;
  std::set<std::pair<std::string, AuthFailure>> logged_;
  int64_t num_suppressed_ = 0;
  Clock::time_point next_note_{};
  std::string likely_host_;
};

} // namespace weft::launcher
