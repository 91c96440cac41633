#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace weft::launcher {

/// The data that a host sends when it asks to join.
struct JoinRequest {
  std::string host;
  std::string version;
  /// See command_digest().
  std::string command;
  int node_count = 0;
  /// The host's --node-rank, if it has one.
  int node_rank = 0;
  int worker_count = 1;
};

/// The properties that all hosts of a run must share, with the values of host
/// 0.
struct JobSpec {
  std::string host;
  std::string command;
  int node_count = 1;
};

/// The reason why a host may not join.
struct JoinRejection {
  int code = 2;
  std::string why;
  /// True if the run cannot start on any host.
  bool is_fatal = false;
};

JoinRequest read_join(const nlohmann::json& message);

/// Compares version, command and number of hosts. Returns the first mismatch.
std::optional<JoinRejection> find_rejection(
    const JoinRequest& request,
    const JobSpec& job_spec);

} // namespace weft::launcher
