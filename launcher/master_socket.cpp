#include "launcher/master_socket.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "launcher/error.h"

namespace weft::launcher {
namespace {

using AddressInfo = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressInfo resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  const std::string host = address == "localhost" ? "127.0.0.1" : address;
  const std::string service = std::to_string(port);
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  if (error == EAI_NONAME) { // a name: ask the resolver
    hints.ai_flags = AI_NUMERICSERV;
    error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  }
  if (error != 0) {
    throw LaunchError(fmt::format(
        "--master-addr {}: {}. On one host leave it out.",
        address,
        gai_strerror(error)));
  }
  return {found, &freeaddrinfo};
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

/// The inode of the socket that listens at `port`, or an empty string.
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

} // namespace

std::string describe_port_owner(int port) {
  const std::string inode = listening_inode(port);
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
        std::string name;
        std::getline(std::ifstream(process.path() / "comm"), name);
        return fmt::format(
            " by process {} ({})", process.path().filename().string(), name);
      }
    }
  }
  return "";
}

MasterSocket::MasterSocket(const std::string& address, int port) {
  const AddressInfo info = resolve(address, port);
  fd_ = UniqueFd(socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd_) {
    throw_errno("socket");
  }
  if (port != 0) { // connections of an ended run may linger in TIME_WAIT
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (bind(fd_.get(), info->ai_addr, info->ai_addrlen) != 0 ||
      listen(fd_.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) {
      throw LaunchError(fmt::format(
          "--master-port {} is in use{}. Give another port, or none: weftrun "
          "then takes a free one.",
          port,
          describe_port_owner(port)));
    }
    if (errno == EADDRNOTAVAIL) {
      throw LaunchError(fmt::format(
          "--master-addr {} is not an address of this host. On one host leave "
          "it out.",
          address));
    }
    throw_errno(fmt::format("listening at {}:{}", address, port));
  }
  port_ = bound_port(fd_.get());
}

} // namespace weft::launcher
