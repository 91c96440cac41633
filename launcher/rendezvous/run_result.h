#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// What host 0 knows of a host at the end of an attempt.
struct HostReport {
  std::string host;
  int node_rank = 0;
  int first_rank = 0;
  int worker_count = 0;
  /// Not empty: the host is lost, and why.
  std::string loss;
  /// Unless it is lost.
  HostResult end;
  /// When it failed, by the clock of host 0.
  std::chrono::steady_clock::time_point failed;
};

/// Code and line of a run, from the first cause on any host: as root_cause()
/// does it among ranks, and a lost host comes before the workers that only lost
/// a peer. After a signal from outside, the code that all share, or 128 + it.
RunResult decide_result(const std::vector<HostReport>& reports);

} // namespace weft::launcher
