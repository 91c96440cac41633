#pragma once

#include <string>

namespace weft::launcher {

/// One start of the workers ("attempt"): where this host stands in it.
struct RankAssignment {
  int node_rank = 0;
  int node_count = 1;
  /// The rank of this host's first worker.
  int first_rank = 0;
  int world_size = 1;
  /// Starts before this one.
  int restart_count = 0;
  std::string master_addr = "127.0.0.1";
  /// 0: the store is served on this host, at a port that it chooses.
  int master_port = 0;
  /// This host's address for the others; empty on one host.
  std::string bind_address;
};

} // namespace weft::launcher
