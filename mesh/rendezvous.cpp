#include "mesh/rendezvous.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mesh/env.h"
#include "mesh/error.h"
#include "mesh/failure.h"

namespace weft::mesh {
namespace {

constexpr int64_t kMostRanks = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostPort = std::numeric_limits<uint16_t>::max();
constexpr const char* kNeededByRanks = "WORLD_SIZE or RANK is";

/// Owns a file descriptor.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct AddressList {
  addrinfo* first = nullptr;
  AddressList(const std::string& host, uint16_t port, int type) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = type;
    const int failed =
        getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
    if (failed != 0) {
      throw_error<CommError>(detail::concat(
          "[rendezvous] cannot resolve ", host, ": ", gai_strerror(failed)));
    }
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
  ~AddressList() { freeaddrinfo(first); }
};

/// The address a client uses for a loopback MASTER_ADDR: "localhost" may
/// resolve to addresses where nobody listens.
std::string loopback_number(const std::string& address) {
  return address == "localhost" ? "127.0.0.1" : address;
}

uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  // The port lies at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

int listen_at(const std::string& address, uint16_t port) {
  const AddressList found(address, port, SOCK_STREAM);
  Socket socket(::socket(
      found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  const int on = 1;
  if (socket.fd() < 0 ||
      setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(socket.fd(), found.first->ai_addr, found.first->ai_addrlen) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0) {
    throw_error<CommError>(detail::concat(
        "[rendezvous] cannot listen at ",
        address,
        ":",
        port,
        ": ",
        std::strerror(errno),
        ". Set MASTER_PORT to a free port."));
  }
  return socket.release();
}

/// The listening socket that weftrun passes on, or none.
std::optional<int> inherited_listener(uint16_t port) {
  const auto fd =
      env::get_int("WEFT_MASTER_FD", 0, std::numeric_limits<int32_t>::max());
  if (!fd) {
    return std::nullopt;
  }
  env::unset("WEFT_MASTER_FD");
  const uint16_t bound = port_of(static_cast<int>(*fd));
  if (bound != port) {
    throw_error<UsageError>(detail::concat(
        "[environment] WEFT_MASTER_FD=",
        *fd,
        " is not a socket bound to MASTER_PORT=",
        port,
        ". It is set by weftrun alone."));
  }
  return static_cast<int>(*fd);
}

c10d::TCPStoreOptions store_options(
    const LaunchInfo& launch,
    std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.master_port;
  options.timeout = timeout;
  options.waitWorkers = false;
  options.isServer =
      launch.rank == 0 && !env::is_true("TORCHELASTIC_USE_AGENT_STORE");
  if (options.isServer) {
    options.masterListenFd = inherited_listener(launch.master_port);
    if (!options.masterListenFd && is_loopback(launch.master_address)) {
      options.masterListenFd =
          listen_at(loopback_number(launch.master_address), launch.master_port);
    }
  }
  return options;
}

} // namespace

void drop_inherited_listener(uint16_t port) {
  if (const auto fd = inherited_listener(port)) {
    close(*fd);
  }
}

LaunchInfo read_launch_info() {
  LaunchInfo launch;
  if (!env::get("RANK") && !env::get("WORLD_SIZE")) {
    return launch;
  }
  launch.world_size = env::require_int("WORLD_SIZE", "RANK is", 1, kMostRanks);
  launch.rank =
      env::require_int("RANK", "WORLD_SIZE is", 0, launch.world_size - 1);
  launch.master_address = env::require("MASTER_ADDR", kNeededByRanks);
  launch.master_port = static_cast<uint16_t>(
      env::require_int("MASTER_PORT", kNeededByRanks, 1, kMostPort));
  const bool one_host = is_loopback(launch.master_address);
  launch.local_world_size =
      env::get_int("LOCAL_WORLD_SIZE", 1, launch.world_size)
          .value_or(one_host ? launch.world_size : 1);
  launch.local_rank = env::get_int("LOCAL_RANK", 0, launch.local_world_size - 1)
                          .value_or(one_host ? launch.rank : 0);
  return launch;
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" ||
         address.starts_with("127.");
}

std::string local_address_towards(const std::string& address) {
  const AddressList found(address, 9, SOCK_DGRAM);
  const Socket socket(
      ::socket(found.first->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  char text[NI_MAXHOST] = {};
  // Connecting a datagram socket only chooses the route.
  if (socket.fd() < 0 ||
      connect(socket.fd(), found.first->ai_addr, found.first->ai_addrlen) !=
          0 ||
      getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      getnameinfo(
          reinterpret_cast<sockaddr*>(&own),
          size,
          text,
          sizeof(text),
          nullptr,
          0,
          NI_NUMERICHOST) != 0) {
    throw_error<CommError>(detail::concat(
        "[rendezvous] there is no route to ",
        address,
        ": ",
        std::strerror(errno)));
  }
  return text;
}

c10::intrusive_ptr<c10d::Store> connect_store(
    const LaunchInfo& launch,
    std::chrono::milliseconds timeout) {
  const auto options = store_options(launch, timeout);
  const std::string restart =
      env::get("TORCHELASTIC_RESTART_COUNT").value_or("0");
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(
        is_loopback(launch.master_address)
            ? loopback_number(launch.master_address)
            : launch.master_address,
        options);
    return c10::make_intrusive<c10d::PrefixStore>(
        "weft/" + restart, std::move(store));
  } catch (const std::exception& cause) {
    throw_error<CommError>(detail::concat(
        "[rendezvous] ",
        failure_reason(cause, timeout),
        ". (rank ",
        launch.rank,
        "/",
        launch.world_size,
        ", store ",
        launch.master_address,
        ":",
        launch.master_port,
        ")"));
  }
}

} // namespace weft::mesh
