#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace weft::launcher {

/// What a host says of itself when it asks to join.
struct JoinRequest {
  std::string host;
  std::string version;
  /// See command_digest().
  std::string command;
  int node_count = 0;
  /// Where it has one.
  int node_rank = 0;
  int worker_count = 1;
};

/// What all hosts of a run have in common, as host 0 has it.
struct JobSpec {
  std::string host;
  std::string command;
  int node_count = 1;
};

/// Why a host may not join.
struct JoinRejection {
  int code = 2;
  std::string why;
  /// The run cannot begin on any host.
  bool is_fatal = false;
};

JoinRequest read_join(const nlohmann::json& message);

/// Compares version, command and number of hosts.
std::optional<JoinRejection> find_rejection(
    const JoinRequest& request,
    const JobSpec& job_spec);

} // namespace weft::launcher
