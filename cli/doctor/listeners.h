#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft::recipes {

/// A TCP socket that a process of Weft's listens on.
struct Listener {
  int pid = 0;
  /// "weft", "weftrun", ...
  std::string program;
  /// Of a worker.
  std::optional<int64_t> rank;
  /// "127.0.0.1", "0.0.0.0", "::1", ...
  std::string address;
  int port = 0;
  /// Only this host can connect.
  bool is_loopback = false;
  std::string purpose;
};

/// What the processes named weft or weftrun that this user may look at listen
/// on, by pid and port. Reads `proc`/<pid>/{comm,fd,environ,net/tcp,net/tcp6}.
std::vector<Listener> find_listeners(
    const std::filesystem::path& proc = "/proc");

/// A socket of /proc/net/tcp or tcp6 in state LISTEN.
struct ListeningSocket {
  std::string address;
  int port = 0;
  bool is_loopback = false;
  uint64_t inode = 0;
};

/// One line of these files; none for the headline and other states.
std::optional<ListeningSocket> parse_socket(const std::string& line);

} // namespace weft::recipes
