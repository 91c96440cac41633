#pragma once

#include <string>

namespace weft::launcher {

/// The ranks of this host in one attempt, that is, in one start of the workers.
struct RankAssignment {
  int node_rank = 0;
  int node_count = 1;
  /// The rank of this host's first worker.
  int first_rank = 0;
  int world_size = 1;
  /// The number of earlier starts.
  int restart_count = 0;
  std::string master_addr = "127.0.0.1";
  /// The port of the store. 0 means that this host serves the store, at a port
  /// that it chooses.
  int master_port = 0;
  /// This host's address for the other hosts. Empty if there is one host.
  std::string bind_address;
};

} // namespace weft::launcher
