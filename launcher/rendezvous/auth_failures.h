#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Why somebody was turned away at the gate.
enum class Refusal {
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
class Refusals {
 public:
  explicit Refusals(Say say);

  /// `host` is an address; empty: it is not known any more.
  void note(const std::string& host, Refusal refusal);
  /// The last that may have been a host of this run, as "10.0.0.2 (another
  /// token)"; empty: none.
  const std::string& likely_host() const { return likely_host_; }

 private:
  using Clock = std::chrono::steady_clock;

  Say say_;
  std::set<std::pair<std::string, Refusal>> said_;
  int64_t unsaid_ = 0;
  Clock::time_point next_note_{};
  std::string likely_host_;
};

} // namespace weft::launcher
