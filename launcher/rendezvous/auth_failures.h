#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// The reason why AuthListener rejected a peer.
enum class AuthFailure {
  kTooMany,
  kNoAnswer,
  kLate,
  kNoWeftrun,
  kEarlierStart,
  kOtherToken,
  kOtherJob
};

/// Logs rejected peers with the reason and a remedy. Logs a new pair of address
/// and reason at once, and all others at intervals, so that unauthenticated
/// peers cannot fill the log.
class AuthFailureLog {
 public:
  explicit AuthFailureLog(base::Logger log);

  /// Logs a rejection. `host` is the peer's address. Empty means that it is no
  /// longer known.
  void note(const std::string& host, AuthFailure refusal);
  /// Returns the last rejected peer that may be a host of this run, as
  /// "10.0.0.2 (another token)". Empty if there is none.
  const std::string& likely_host() const { return likely_host_; }

 private:
  using Clock = std::chrono::steady_clock;

  base::Logger log_;
  std::set<std::pair<std::string, AuthFailure>> logged_;
  int64_t num_suppressed_ = 0;
  Clock::time_point next_note_{};
  std::string likely_host_;
};

} // namespace weft::launcher
