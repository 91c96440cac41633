#include "cli/doctor/listeners.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include <arpa/inet.h>

#include "base/read_file.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kListening = "0A";

template <class T>
std::optional<T> to_number(std::string_view text, int base = 10) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  return error == std::errc() && stop == end && !text.empty()
             ? std::optional(value)
             : std::nullopt;
}

/// Parses an address, which the kernel prints as 32-bit words in the host's
/// byte order.
std::vector<uint32_t> words_of(std::string_view hex) {
  std::vector<uint32_t> words;
  for (size_t i = 0; i + 8 <= hex.size(); i += 8) {
    words.push_back(to_number<uint32_t>(hex.substr(i, 8), 16).value_or(0));
  }
  return words;
}

bool is_loopback(const std::vector<uint32_t>& words) {
  std::array<unsigned char, 16> bytes{};
  std::memcpy(bytes.data(), words.data(), 4 * words.size());
  if (words.size() == 1) {
    return bytes[0] == 127;
  }
  const std::array<unsigned char, 12> mapped{
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool is_one = std::all_of(
                          bytes.begin(),
                          bytes.end() - 1,
                          [](auto byte) { return byte == 0; }) &&
                      bytes[15] == 1;
  return is_one || (std::equal(mapped.begin(), mapped.end(), bytes.begin()) &&
                    bytes[12] == 127);
}

std::map<std::string, std::string> environment_of(const fs::path& process) {
  std::map<std::string, std::string> variables;
  std::istringstream entries(base::read_file(process / "environ").value_or(""));
  for (std::string entry; std::getline(entries, entry, '\0');) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      variables[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  return variables;
}

std::vector<uint64_t> sockets_of(const fs::path& process) {
  std::vector<uint64_t> inodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone);
    constexpr std::string_view kStart = "socket:[";
    if (!gone && target.starts_with(kStart) && target.ends_with(']')) {
      const auto inode = to_number<uint64_t>(std::string_view(target).substr(
          kStart.size(), target.size() - kStart.size() - 1));
      inodes.push_back(inode.value_or(0));
    }
  }
  return inodes;
}

std::vector<ListeningSocket> listening_near(const fs::path& process) {
  std::vector<ListeningSocket> sockets;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(process / "net" / table);
    for (std::string line; std::getline(file, line);) {
      if (const auto socket = parse_socket(line)) {
        sockets.push_back(*socket);
      }
    }
  }
  return sockets;
}

std::string purpose_of(
    const std::string& program,
    int port,
    const std::map<std::string, std::string>& variables) {
  if (program != "weft") {
    return "where this run's launchers or ranks meet";
  }
  const auto master = variables.find("MASTER_PORT");
  return master != variables.end() && master->second == std::to_string(port)
             ? "the rendezvous store (MASTER_PORT)"
             : "connections of other ranks (gloo)";
}

void add_listeners(
    const fs::path& process,
    int pid,
    std::vector<Listener>& listeners) {
  std::string program = base::read_file(process / "comm").value_or("");
  program = program.substr(0, program.find('\n'));
  if (program != "weft" && program != "weftrun") {
    return;
  }
  const auto inodes = sockets_of(process);
  const auto variables = environment_of(process);
  const auto rank = variables.find("RANK");
  for (const auto& socket : listening_near(process)) {
    if (std::ranges::find(inodes, socket.inode) == inodes.end()) {
      continue;
    }
    Listener listener{
        .pid = pid,
        .program = program,
        .rank = std::nullopt,
        .address = socket.address,
        .port = socket.port,
        .is_loopback = socket.is_loopback,
        .purpose = purpose_of(program, socket.port, variables)};
    if (program == "weft" && rank != variables.end()) {
      listener.rank = to_number<int64_t>(rank->second);
    }
    listeners.push_back(std::move(listener));
  }
}

} // namespace

std::optional<ListeningSocket> parse_socket(const std::string& line) {
  std::istringstream fields(line);
  std::string local;
  std::string state;
  std::string skipped;
  ListeningSocket socket;
  // The columns are: sl local remote st tx:rx tr:when retransmits uid timeout
  // inode.
  fields >> skipped >> local >> skipped >> state >> skipped >> skipped >>
      skipped >> skipped >> skipped >> socket.inode;
  const size_t colon = local.find(':');
  if (!fields || state != kListening || colon == std::string::npos) {
    return std::nullopt;
  }
  const auto words = words_of(std::string_view(local).substr(0, colon));
  if (words.size() != 1 && words.size() != 4) {
    return std::nullopt;
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(
      words.size() == 1 ? AF_INET : AF_INET6,
      words.data(),
      text.data(),
      text.size());
  socket.address = text.data();
  socket.port =
      to_number<int>(std::string_view(local).substr(colon + 1), 16).value_or(0);
  socket.is_loopback = is_loopback(words);
  return socket;
}

std::vector<Listener> find_listeners(const fs::path& proc) {
  std::vector<Listener> listeners;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc, error)) {
    const auto pid = to_number<int>(entry.path().filename().string());
    if (pid) {
      add_listeners(entry.path(), *pid, listeners);
    }
  }
  std::ranges::sort(listeners, {}, [](const Listener& listener) {
    return std::tuple(listener.pid, listener.port, listener.address);
  });
  return listeners;
}

} // namespace weft::cli
