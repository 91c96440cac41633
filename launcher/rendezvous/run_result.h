#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Host 0's information about a host at the end of an attempt.
struct HostReport {
  std::string host;
  int node_rank = 0;
  int first_rank = 0;
  int worker_count = 0;
  /// The reason why the host was lost. Empty if it was not.
  std::string loss;
  /// The host's result, unless it was lost.
  HostResult end;
  /// The time of the failure, on host 0's clock.
  std::chrono::steady_clock::time_point failed;
};

/// Returns the code and line of a run, from the root cause on any host. Hosts
/// are compared like ranks in root_cause(); a lost host takes precedence over
/// workers that only lost a peer. After a signal from outside, returns the code
/// that all hosts share, otherwise exit_code_of_signal().
RunResult decide_result(const std::vector<HostReport>& reports);

} // namespace weft::launcher
