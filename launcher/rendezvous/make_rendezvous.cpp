#include "launcher/rendezvous/make_rendezvous.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "launcher/connection/address.h"
#include "launcher/connection/token.h"
#include "launcher/process/error.h"
#include "launcher/process/master_socket.h"
#include "launcher/rendezvous/rendezvous_client.h"
#include "launcher/rendezvous/rendezvous_server.h"

namespace weft::launcher {
namespace {

bool must_be_host0(const HostOptions& hosts) {
  return hosts.ranked_by_arrival ? hosts.is_host.value_or(false)
                                 : hosts.node_rank == 0;
}

bool may_be_host0(const HostOptions& hosts) {
  return must_be_host0(hosts) ||
         (hosts.ranked_by_arrival && hosts.is_host.value_or(true));
}

[[noreturn]] void throw_unable(const HostOptions& hosts, int error) {
  const std::string where = fmt::format("{}:{}", hosts.address, hosts.port);
  if (error == EADDRINUSE) {
    throw LaunchError(fmt::format(
        "port {} of the endpoint {} is in use{}. Give another --rdzv-endpoint, "
        "the same on all hosts.",
        hosts.port,
        where,
        describe_port_owner(hosts.port)));
  }
  if (error == EADDRNOTAVAIL) {
    throw LaunchError(fmt::format(
        "the endpoint {} is not an address of this host, but --node-rank is 0. "
        "Give each host its own --node-rank, and all hosts the endpoint of "
        "host 0.",
        where));
  }
  throw LaunchError(
      fmt::format("cannot listen at {}: {}.", where, std::strerror(error)));
}

base::UniqueFd listen_if_host0(const HostOptions& hosts) {
  if (!may_be_host0(hosts)) {
    return {};
  }
  const std::string& host = hosts.local_addr.empty() || !must_be_host0(hosts)
                                ? hosts.address
                                : hosts.local_addr;
  std::string why;
  const auto address = resolve(host, hosts.port, why);
  if (!address) {
    if (!must_be_host0(hosts)) {
      // The name may be that of another host, whose launcher checks it.
      return {};
    }
    throw LaunchError(fmt::format(
        "host 0's name '{}' cannot be resolved on this host ({}). Use a name "
        "or address in --rdzv-endpoint that all hosts can resolve.",
        host,
        why));
  }
  // Debian's /etc/hosts maps a host's own name to 127.0.1.1.
  if (address->is_loopback() && host != "localhost" && host != "::1" &&
      !host.starts_with("127.")) {
    throw LaunchError(fmt::format(
        "the endpoint's name {} resolves to {} on this host, which other hosts "
        "cannot reach. Set --local-addr to an address of this host that they "
        "can reach.",
        host,
        address->host()));
  }
  base::UniqueFd listener = listen_at(*address);
  if (!listener && must_be_host0(hosts)) {
    throw_unable(hosts, errno);
  }
  if (!listener && errno != EADDRNOTAVAIL && errno != EADDRINUSE) {
    throw_unable(hosts, errno);
  }
  return listener;
}

} // namespace

std::unique_ptr<Rendezvous> make_rendezvous(
    const Options& options,
    const std::string& host_name,
    base::Logger log) {
  const HostOptions& hosts = options.hosts;
  if (hosts.node_count == 1) {
    return std::make_unique<SingleHostRendezvous>(
        options.worker_count, options.max_restarts);
  }
  const std::string token = read_token(hosts.token_file, hosts.token_fd);
  base::UniqueFd listener = listen_if_host0(hosts);
  if (listener) {
    return std::make_unique<RendezvousServer>(
        options, host_name, std::move(listener), token, std::move(log));
  }
  return std::make_unique<RendezvousClient>(
      options, host_name, token, std::move(log));
}

void SingleHostRendezvous::ready() {
  rank_assignment_.emplace();
  rank_assignment_->world_size = worker_count_;
  rank_assignment_->restart_count = restart_policy_.count();
  started_ = std::chrono::steady_clock::now();
}

std::optional<RankAssignment> SingleHostRendezvous::take_rank_assignment() {
  return std::exchange(rank_assignment_, std::nullopt);
}

void SingleHostRendezvous::end(const HostResult& end) {
  run_result_.emplace();
  run_result_->code = end.code;
  run_result_->line = end.line;
  if (end.signal == 0) {
    restart_policy_.decide(
        *run_result_,
        std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::steady_clock::now() - started_));
  }
}

std::optional<RunResult> SingleHostRendezvous::take_result() {
  return std::exchange(run_result_, std::nullopt);
}

} // namespace weft::launcher
