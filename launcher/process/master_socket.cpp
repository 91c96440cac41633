#include "launcher/process/master_socket.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <fmt/format.h>

#include "base/first_line.h"
#include "base/loopback.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

using AddressInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressInfo resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  const std::string host =
      address == "localhost" ? base::loopback_address() : address;
  const std::string service = std::to_string(port);
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  if (error == EAI_NONAME) {
    // The host is a name, so this asks the resolver.
    hints.ai_flags = AI_NUMERICSERV;
    error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  }
  if (error != 0) {
    throw LaunchError(fmt::format(
        "--master-addr {} cannot be resolved: {}. Leave the flag out on a "
        "single host.",
        address,
        gai_strerror(error)));
  }
  return {found, &freeaddrinfo};
}

/// Returns base::loopback_fault() of an address. Empty if it is not a loopback
/// address.
std::string loopback_fault(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool is_v6 = address.sa_family == AF_INET6;
  const void* number =
      is_v6 ? static_cast<const void*>(
                  &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
            : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  inet_ntop(address.sa_family, number, text, sizeof(text));
  const std::string host = text;
  const bool is_loopback = host == "::1" || host.starts_with("127.");
  return is_loopback ? base::loopback_fault(host) : "";
}

int bound_port(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(
      bound.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
          : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

std::string listening_inode(int port) {
  const std::string suffix = fmt::format(":{:04X}", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream columns(line);
      std::string slot, local, remote, state, skipped, inode;
      columns >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) {
        columns >> skipped;
      }
      if (columns >> inode && state == "0A" && local.ends_with(suffix)) {
        return inode;
      }
    }
  }
  return "";
}

std::string claim_name(int port) {
  return fmt::format("weftrun-master-port-{}", port);
}

/// Returns the inode of the socket with which a launcher claims `port`, or an
/// empty string.
std::string claiming_inode(int port) {
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(" @" + claim_name(port))) {
      std::istringstream columns(line);
      std::string skipped, inode;
      for (int i = 0; i < 6; ++i) {
        columns >> skipped;
      }
      columns >> inode;
      return inode;
    }
  }
  return "";
}

[[noreturn]] void throw_in_use(int port) {
  throw LaunchError(fmt::format(
      "--master-port {} is in use{}. Give another port, or leave the flag out "
      "to use a free one.",
      port,
      describe_port_owner(port)));
}

std::string describe_socket_owner(const std::string& inode) {
  if (inode.empty()) {
    return "";
  }
  const std::string wanted = "socket:[" + inode + "]";
  std::error_code error;
  namespace fs = std::filesystem;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    fs::directory_iterator descriptors(process.path() / "fd", error);
    if (error) {
      continue;
    }
    for (const auto& descriptor : descriptors) {
      if (fs::read_symlink(descriptor.path(), error) == wanted) {
        return fmt::format(
            " by process {} ({})",
            process.path().filename().string(),
            base::first_line(process.path() / "comm").value_or("?"));
      }
    }
  }
  return "";
}

} // namespace

std::string describe_port_owner(int port) {
  const std::string inode = listening_inode(port);
  return describe_socket_owner(inode.empty() ? claiming_inode(port) : inode);
}

// Note [Reserved master port]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Weft's rank 0 serves the store on the socket that it inherits. Other
// programs, such as torch's TCPStore, bind MASTER_PORT themselves. A socket
// that is bound and does not listen serves both: the kernel does not give its
// port to a process that asks for any free port, and lets a socket with
// SO_REUSEADDR listen at it. But the kernel would also let a second launcher
// with the same port bind it. So each launcher also claims the port by a name
// in the abstract namespace of Unix sockets, which belongs to the network
// namespace, as ports do, and disappears with its owner.

MasterSocket::MasterSocket(const std::string& address, int port) {
  // The kernel may return a port that another launcher still claims after its
  // rank 0 has ended, so this tries again.
  constexpr int kAttempts = 100;
  for (int i = 0; i < (port == 0 ? kAttempts : 1); ++i) {
    bind_to(address, port);
    if (claim()) {
      return;
    }
  }
  throw_in_use(port_);
}

void MasterSocket::bind_to(const std::string& address, int port) {
  const AddressInfo info = resolve(address, port);
  if (const auto fault = loopback_fault(*info->ai_addr); !fault.empty()) {
    throw LaunchError(fault + ".");
  }
  fd_ = base::UniqueFd(socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd_) {
    throw_errno("socket");
  }
  const auto reuse = [&] {
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  };
  if (port != 0) {
    // Connections of an earlier run may still be in TIME_WAIT.
    reuse();
  }
  if (bind(fd_.get(), info->ai_addr, info->ai_addrlen) != 0) {
    if (errno == EADDRINUSE) {
      throw_in_use(port);
    }
    if (errno == EADDRNOTAVAIL) {
      throw LaunchError(fmt::format(
          "--master-addr {} is not an address of this host. On one host leave "
          "it out.",
          address));
    }
    throw_errno(fmt::format("binding {}:{}", address, port));
  }
  port_ = bound_port(fd_.get());
  reuse();
}

bool MasterSocket::claim() {
  claim_ = base::UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = claim_name(port_);
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return bind(
             claim_.get(), reinterpret_cast<const sockaddr*>(&address), size) ==
         0;
}

} // namespace weft::launcher
