#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace weft::launcher {

/// The flags about hosts, as written.
struct HostFlags {
  std::string nnodes = "1:1";
  int node_rank = 0;
  std::string master_addr;
  int master_port = 0;
  bool standalone = false;
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_conf;
  std::string local_addr;
  std::string token_file;
  int token_fd = -1;
};

/// What they ask for.
struct HostOptions {
  int node_count = 1;
  int node_rank = 0;
  /// Hosts are ranked as they come, and whoever has the endpoint's address is
  /// host 0 (c10d); else --node-rank says it (static).
  bool ranked_by_arrival = false;
  /// Over several hosts: where host 0's launcher listens. On one: where rank 0
  /// is met; port 0 is any free one.
  std::string address = "127.0.0.1";
  int port = 0;
  /// This host's address for the others; empty: on the way to host 0.
  std::string local_addr;
  std::string token_file;
  int token_fd = -1;
  std::chrono::milliseconds join_timeout = std::chrono::seconds(600);
  std::chrono::milliseconds keep_alive_interval = std::chrono::seconds(5);
  int keep_alive_attempts = 3;
  /// Whether this is host 0, where c10d is told.
  std::optional<bool> is_host;
};

/// Throws: LaunchError on what does not fit together or is not supported.
HostOptions check_hosts(const HostFlags& flags);

} // namespace weft::launcher
