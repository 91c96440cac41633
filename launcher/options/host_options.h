#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace weft::launcher {

/// The host flags, as written.
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

/// The validated host flags.
struct HostOptions {
  int node_count = 1;
  int node_rank = 0;
  /// True if hosts are ranked in order of arrival, with host 0 being the one
  /// that has the endpoint's address (c10d). False if --node-rank gives the
  /// ranks (static).
  bool ranked_by_arrival = false;
  /// With several hosts, the address at which host 0's launcher listens. With
  /// one host, that of rank 0's store, where port 0 selects any free port.
  std::string address;
  int port = 0;
  /// This host's address for the other hosts. Empty selects the address of the
  /// route to host 0.
  std::string local_addr;
  std::string token_file;
  int token_fd = -1;
  std::chrono::milliseconds join_timeout = std::chrono::seconds(600);
  std::chrono::milliseconds keep_alive_interval = std::chrono::seconds(5);
  int keep_alive_attempts = 3;
  /// True if this is host 0, false if it is not. Set only if --rdzv-conf
  /// is_host is given (c10d).
  std::optional<bool> is_host;
};

/// Validates the flags.
/// Throws: LaunchError if they contradict each other or are not supported.
HostOptions check_hosts(const HostFlags& flags);

} // namespace weft::launcher
