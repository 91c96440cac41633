#include "launcher/elastic/coordinator.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "launcher/process/error.h"
#include "lighthouse/clock.h"

namespace weft::launcher {
namespace {

/// The interval at which the lighthouse is updated without events.
constexpr std::chrono::milliseconds kUpdateInterval{20};

/// Returns a ballot that is greater than that of every earlier lighthouse on
/// this host.
uint64_t ballot_of_start() {
  return static_cast<uint64_t>(
      std::chrono::system_clock::now().time_since_epoch().count());
}

} // namespace

Coordinator::Coordinator(lighthouse::LighthouseOptions options)
    : loop_(kUpdateInterval),
      lighthouse_(options, ballot_of_start(), lighthouse::now()) {
  loop_.on_tick([this] { update(); });
}

Coordinator::~Coordinator() = default;

base::UniqueFd Coordinator::connect_worker(
    int local_rank,
    lighthouse::GroupId group) {
  disconnect(local_rank);
  int ends[2];
  if (socketpair(
          AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, static_cast<int*>(ends)) !=
      0) {
    throw_errno("socketpair");
  }
  base::UniqueFd worker_end(ends[1]);
  auto& worker = workers_[local_rank];
  worker.fd = base::UniqueFd(ends[0]);
  worker.group = group;
  loop_.watch(worker.fd.get(), EPOLLIN, [this, local_rank](uint32_t events) {
    handle(local_rank, events);
  });
  return worker_end;
}

void Coordinator::lose(lighthouse::GroupId group, const std::string& why) {
  if (!why.empty()) {
    note_end(group, why);
  }
  lighthouse_.lose(group);
  update();
}

void Coordinator::end_run() {
  set(lighthouse::kRunEndsKey, "1");
}

void Coordinator::set(const std::string& key, const std::string& value) {
  constexpr lighthouse::KeyValueStore::Client kNobody = UINT64_MAX;
  store_.handle(
      kNobody,
      {.op = lighthouse::StoreRequest::Op::kSet,
       .keys = {key},
       .value = value});
}

/// Records why a group has ended. Later reasons are ignored, because they are
/// consequences.
void Coordinator::note_end(lighthouse::GroupId group, const std::string& why) {
  if (noted_ends_.insert(group).second) {
    set(lighthouse::ended_key(group),
        std::to_string(lighthouse::now().count()) + " " + why);
  }
}

void Coordinator::finish(lighthouse::GroupId group) {
  lighthouse_.finish(group);
  update();
}

void Coordinator::handle(int local_rank, uint32_t events) {
  auto& worker = workers_.at(local_rank);
  if ((events & EPOLLOUT) != 0 && !write_some(worker)) {
    return disconnect(local_rank);
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) {
    return;
  }
  const bool is_open = read_some(worker);
  try {
    while (const auto message = worker.incoming.take()) {
      take(local_rank, *message);
    }
  } catch (const lighthouse::WireError&) {
    // The worker notices the closed connection.
    return disconnect(local_rank);
  }
  if (!is_open) {
    disconnect(local_rank);
  }
}

bool Coordinator::read_some(Worker& worker) {
  std::array<char, 16384> buffer;
  const ssize_t size =
      recv(worker.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (size > 0) {
    worker.incoming.append({buffer.data(), static_cast<size_t>(size)});
  }
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

void Coordinator::take(int local_rank, const lighthouse::Message& message) {
  if (const auto* report = std::get_if<lighthouse::Report>(&message)) {
    if (report->group == workers_.at(local_rank).group) {
      if (report->has_left_for_good) {
        note_end(report->group, "left");
      }
      lighthouse_.receive(*report, lighthouse::now());
      update(report->group);
    }
  } else if (
      const auto* request = std::get_if<lighthouse::StoreRequest>(&message)) {
    for (const auto& delivery :
         store_.handle(static_cast<uint64_t>(local_rank), *request)) {
      send(static_cast<int>(delivery.client), delivery.answer);
    }
  }
}

void Coordinator::send(int local_rank, const lighthouse::Message& message) {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) {
    return;
  }
  found->second.outgoing += lighthouse::encode(message);
  if (!write_some(found->second)) {
    // read_some() will notice the end of the connection.
    found->second.outgoing.clear();
  }
}

bool Coordinator::write_some(Worker& worker) {
  while (!worker.outgoing.empty()) {
    const ssize_t size = ::send(
        worker.fd.get(),
        worker.outgoing.data(),
        worker.outgoing.size(),
        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) {
      if (errno != EAGAIN && errno != EINTR) {
        return false;
      }
      break;
    }
    worker.outgoing.erase(0, static_cast<size_t>(size));
  }
  loop_.change(
      worker.fd.get(), worker.outgoing.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  return true;
}

void Coordinator::disconnect(int local_rank) {
  const auto found = workers_.find(local_rank);
  if (found != workers_.end()) {
    loop_.forget(found->second.fd.get());
    store_.drop(static_cast<uint64_t>(local_rank));
    workers_.erase(found);
  }
}

void Coordinator::update(std::optional<lighthouse::GroupId> reporter) {
  const auto now = lighthouse::now();
  lighthouse_.update(now);
  erase_former_epochs();
  for (const auto group : lighthouse_.groups()) {
    const auto reply = lighthouse_.reply(group, now);
    const auto directive = std::make_pair(reply.directive, reply.epoch.number);
    const auto [told, is_new] = told_.try_emplace(group, directive);
    if (!is_new && told->second == directive && group != reporter) {
      continue;
    }
    told->second = directive;
    for (const auto& [local_rank, worker] : workers_) {
      if (worker.group == group) {
        send(local_rank, reply);
      }
    }
  }
}

void Coordinator::erase_former_epochs() {
  const auto& epoch = lighthouse_.epoch();
  if (epoch && epoch->number != epoch_) {
    if (epoch_) {
      store_.erase(lighthouse::key_prefix(epoch_));
    }
    epoch_ = epoch->number;
  }
}

} // namespace weft::launcher
