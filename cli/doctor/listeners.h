#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft::cli {

/// A TCP socket on which a Weft process listens.
struct Listener {
  int pid = 0;
  /// The program: "weft", "weftrun", ...
  std::string program;
  /// The rank, if it is a worker.
  std::optional<int64_t> rank;
  /// The address: "127.0.0.1", "0.0.0.0", "::1", ...
  std::string address;
  int port = 0;
  /// True if only this host can connect.
  bool is_loopback = false;
  std::string purpose;
};

/// Returns the sockets of processes named weft or weftrun that this user may
/// inspect, by pid and port. Reads
/// `proc`/<pid>/{comm,fd,environ,net/tcp,net/tcp6}.
std::vector<Listener> find_listeners(
    const std::filesystem::path& proc = "/proc");

/// A socket in state LISTEN in /proc/net/tcp or tcp6.
struct ListeningSocket {
  std::string address;
  int port = 0;
  bool is_loopback = false;
  uint64_t inode = 0;
};

/// Parses one line of these files. Empty for the header line and for other
/// states.
std::optional<ListeningSocket> parse_socket(const std::string& line);

} // namespace weft::cli
