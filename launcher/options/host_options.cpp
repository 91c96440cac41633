#include "launcher/options/host_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "base/parse_int.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxHosts = 4096;
constexpr int kStaticPort = 29500;
constexpr int kArrivalPort = 29400;

int node_count(const std::string& nnodes) {
  const size_t colon = nnodes.find(':');
  const auto least = base::parse_int(nnodes.substr(0, colon), 1, kMaxHosts);
  const auto most =
      colon == std::string::npos
          ? least
          : base::parse_int(nnodes.substr(colon + 1), 1, kMaxHosts);
  if (!least || !most) {
    throw LaunchError(fmt::format(
        "--nnodes {} is not a number of hosts from 1 to {}, such as 2 or 2:2.",
        nnodes,
        kMaxHosts));
  }
  if (*least != *most) {
    throw LaunchError(fmt::format(
        "--nnodes {}: the number of hosts cannot change during a run. Give "
        "one number.",
        nnodes));
  }
  return *least;
}

/// Sets address and port from "host", "host:port" or "[host]:port".
void read_endpoint(const HostFlags& flags, HostOptions& options) {
  const std::string& text = flags.rdzv_endpoint;
  size_t colon = text.rfind(':');
  const size_t bracket = text.find(']');
  if (colon != std::string::npos && bracket != std::string::npos &&
      colon < bracket) {
    colon = std::string::npos;
  }
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  if (flags.master_addr.empty() && !host.empty()) {
    options.address = host;
  }
  if (flags.master_port != 0 || colon == std::string::npos) {
    return;
  }
  const std::string port = text.substr(colon + 1);
  const auto number = base::parse_int(port, 0, 65535);
  if (!number) {
    throw LaunchError(fmt::format(
        "--rdzv-endpoint {}: '{}' is not a port from 0 to 65535.", text, port));
  }
  options.port = *number;
}

milliseconds
seconds_of(const std::string& key, const std::string& value, double most) {
  double seconds = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, seconds);
  if (error != std::errc() || stop != end || !std::isfinite(seconds) ||
      seconds <= 0 || seconds > most) {
    throw LaunchError(fmt::format(
        "--rdzv-conf {}={} is not a number of seconds above 0 and up to {}.",
        key,
        value,
        most));
  }
  return std::chrono::ceil<milliseconds>(
      std::chrono::duration<double>(seconds));
}

bool to_bool(const std::string& key, const std::string& value) {
  const bool yes = value == "1" || value == "true" || value == "True";
  if (!yes && value != "0" && value != "false" && value != "False") {
    throw LaunchError(
        fmt::format("--rdzv-conf {}={}: expected 0 or 1.", key, value));
  }
  return yes;
}

int whole(const std::string& key, const std::string& value, int least) {
  constexpr int kMax = 1000000;
  const auto number = base::parse_int(value, least, kMax);
  if (!number) {
    throw LaunchError(fmt::format(
        "--rdzv-conf {}={} is not an integer from {} to {}.",
        key,
        value,
        least,
        kMax));
  }
  return *number;
}

/// Sets one value of --rdzv-conf. Accepts torchrun's keys that have no meaning
/// here.
void set(const std::string& key, const std::string& value, HostOptions& out) {
  constexpr double kDay = 86400;
  constexpr std::array<std::string_view, 6> kUnused{
      "last_call_timeout",
      "close_timeout",
      "read_timeout",
      "heartbeat_timeout",
      "store_type",
      "use_libuv"};
  if (key == "join_timeout" || key == "timeout") {
    out.join_timeout = seconds_of(key, value, kDay);
  } else if (key == "keep_alive_interval" || key == "heartbeat") {
    out.keep_alive_interval = seconds_of(key, value, kDay);
  } else if (key == "keep_alive_max_attempt") {
    out.keep_alive_attempts = whole(key, value, 1);
  } else if (key == "is_host") {
    out.is_host = to_bool(key, value);
  } else if (key == "rank") {
    out.node_rank = whole(key, value, 0);
  } else if (std::find(kUnused.begin(), kUnused.end(), key) == kUnused.end()) {
    throw LaunchError(fmt::format(
        "--rdzv-conf {}={} is an unknown setting. Known settings are "
        "join_timeout, keep_alive_interval, keep_alive_max_attempt, is_host "
        "and rank.",
        key,
        value));
  }
}

void read_conf(const std::string& text, HostOptions& options) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) {
      throw LaunchError(
          fmt::format("--rdzv-conf {}: '{}' is not key=value.", text, part));
    }
    set(part.substr(0, equals), part.substr(equals + 1), options);
  }
}

} // namespace

HostOptions check_hosts(const HostFlags& flags) {
  HostOptions options;
  options.node_count = flags.standalone ? 1 : node_count(flags.nnodes);
  options.node_rank = flags.node_rank;
  options.ranked_by_arrival = flags.rdzv_backend == "c10d";
  options.local_addr = flags.local_addr;
  options.token_file = flags.token_file;
  options.token_fd = flags.token_fd;
  options.port = flags.master_port;
  if (!flags.master_addr.empty()) {
    options.address = flags.master_addr;
  }
  read_conf(flags.rdzv_conf, options);
  if (options.node_rank < 0 || options.node_rank >= options.node_count) {
    throw LaunchError(fmt::format(
        "--node-rank {}: with --nnodes {} it must be {}.",
        options.node_rank,
        options.node_count,
        options.node_count == 1
            ? "0"
            : fmt::format("0 to {}", options.node_count - 1)));
  }
  const bool alone = options.node_count == 1;
  if (!flags.rdzv_endpoint.empty() && !flags.standalone &&
      !(alone && options.ranked_by_arrival)) {
    read_endpoint(flags, options);
  }
  if (alone) {
    return options;
  }
  if (flags.master_addr.empty() && flags.rdzv_endpoint.empty()) {
    throw LaunchError(fmt::format(
        "--nnodes {} requires the address of host 0: give --rdzv-endpoint "
        "host:port, the same on all hosts.",
        options.node_count));
  }
  if (options.port == 0) {
    options.port = options.ranked_by_arrival ? kArrivalPort : kStaticPort;
  }
  return options;
}

} // namespace weft::launcher
