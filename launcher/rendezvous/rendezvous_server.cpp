#include "launcher/rendezvous/rendezvous_server.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/connection/address.h"
#include "launcher/process/outcome.h"
#include "launcher/rendezvous/messages.h"

namespace weft::launcher {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kParting{500};

milliseconds since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration_cast<milliseconds>(
      std::chrono::steady_clock::now() - then);
}

} // namespace

RendezvousServer::RendezvousServer(
    const Options& options,
    const std::string& host_name,
    base::UniqueFd listener,
    const std::string& token,
    base::Logger log)
    : options_(options),
      command_(command_digest(options)),
      log_(std::move(log)),
      loop_(kTick),
      auth_listener_(
          loop_,
          std::move(listener),
          token,
          sha256(options.run_id),
          [this](base::UniqueFd fd, const Bits256& session) {
            on_authenticated(std::move(fd), session);
          },
          log_),
      members_(static_cast<size_t>(options.hosts.node_count)),
      restart_policy_(options.max_restarts),
      next_note_(Clock::now() + kFirstNote) {
  members_.front() = std::make_unique<Member>();
  own().report.host = host_name;
  own().report.worker_count = options.worker_count;
  loop_.on_tick([this] { tick(); });
}

RendezvousServer::~RendezvousServer() {
  for (const auto& member : members_) {
    if (member && member->link) {
      member->link->finish(kParting);
    }
  }
}

void RendezvousServer::tick() {
  auth_listener_.tick();
  for (const auto& member : members_) {
    if (member && member->link) {
      member->link->tick();
    }
  }
  for (const auto& link : pending_clients_) {
    link->tick();
  }
  // Connections that were closed are removed here and not in their handlers.
  std::erase_if(
      pending_clients_, [](const auto& link) { return !link->is_open(); });
  if (phase_ == Phase::kWaitingForHosts) {
    for (auto& member : members_) {
      if (member && member->link && !member->link->is_open()) {
        member.reset();
      }
    }
    log_missing_hosts();
  }
  if (stop_at_ && Clock::now() >= *stop_at_) {
    stop_at_.reset();
    stop_all({.signal = SIGTERM, .requested = false}, nullptr);
  }
}

void RendezvousServer::log_missing_hosts() {
  const auto now = Clock::now();
  const auto there = std::ranges::count_if(
      members_, [](const auto& member) { return member != nullptr; });
  const auto count = std::ssize(members_);
  if (there == count) {
    return;
  }
  if (now - gathering_since_ >= options_.hosts.join_timeout) {
    const std::string& refused = auth_listener_.refused_host();
    send_result(
        {.code = kPeerLost,
         .line = failure_line(
             kPeerLost,
             fmt::format(
                 "{} of {} hosts arrived within {} s (--rdzv-conf "
                 "join_timeout){}. Start weftrun on the others, with the same "
                 "--rdzv-endpoint, --rdzv-id and token.",
                 there,
                 count,
                 options_.hosts.join_timeout.count() / 1000.0,
                 refused.empty() ? "" : "; refused: " + refused)),
         .note = "",
         .restart_after = std::nullopt});
  } else if (now >= next_note_) {
    next_note_ = now + kNextNote;
    log_.info(fmt::format(
        "{} of {} hosts have arrived; waiting for the others", there, count));
  }
}

void RendezvousServer::on_authenticated(
    base::UniqueFd fd,
    const Bits256& session) {
  pending_clients_.push_back(std::make_unique<ControlConnection>(
      loop_,
      std::move(fd),
      session,
      /*is_host0=*/true,
      KeepAlive{
          options_.hosts.keep_alive_interval,
          options_.hosts.keep_alive_attempts}));
  ControlConnection& link = *pending_clients_.back();
  link.listen(
      [this, &link](const json& message) { join(link, message); },
      [](const std::string&) {});
}

int RendezvousServer::node_rank_for(const JoinRequest& request) const {
  const int wanted = request.node_rank;
  if (!options_.hosts.ranked_by_arrival) {
    const bool free = wanted > 0 && wanted < std::ssize(members_) &&
                      members_[static_cast<size_t>(wanted)] == nullptr;
    return free ? wanted : -1;
  }
  const auto found = std::ranges::find_if(
      members_, [](const auto& member) { return !member; });
  return found == members_.end() ? -1
                                 : static_cast<int>(found - members_.begin());
}

std::optional<JoinRejection> RendezvousServer::rejection(
    const JoinRequest& request) const {
  if (auto other = find_rejection(
          request,
          {.host = members_.front()->report.host,
           .command = command_,
           .node_count = static_cast<int>(members_.size())})) {
    return other;
  }
  if (phase_ != Phase::kWaitingForHosts) {
    return JoinRejection{
        .why = fmt::format(
            "run '{}' already has its {} hosts. Choose another --rdzv-id and "
            "--rdzv-endpoint for another run.",
            options_.run_id,
            members_.size())};
  }
  if (node_rank_for(request) < 0) {
    return JoinRejection{
        .why = options_.hosts.ranked_by_arrival
                   ? fmt::format("all {} hosts have arrived.", members_.size())
                   : fmt::format(
                         "--node-rank {} is already used by another host. Give "
                         "each host its own rank from 0 to {}.",
                         request.node_rank,
                         members_.size() - 1)};
  }
  return std::nullopt;
}

void RendezvousServer::reject_join(
    ControlConnection& link,
    const JoinRejection& rejection) {
  RunResult run_result;
  run_result.code = rejection.code;
  run_result.line = failure_line(rejection.code, rejection.why);
  link.send(to_message(run_result));
  if (rejection.is_fatal && phase_ == Phase::kWaitingForHosts) {
    send_result(run_result);
  }
}

void RendezvousServer::join(ControlConnection& link, const json& message) {
  if (text_of(message, "type") != "join") {
    return;
  }
  const auto request = read_join(message);
  if (const auto why = rejection(request)) {
    reject_join(link, *why);
    return;
  }
  const int node = node_rank_for(request);
  auto member = std::make_unique<Member>();
  member->report.host = request.host;
  member->report.node_rank = node;
  member->report.worker_count = request.worker_count;
  member->ready = true;
  const auto found = std::ranges::find_if(
      pending_clients_,
      [&](const auto& guest) { return guest.get() == &link; });
  member->link = std::move(*found);
  pending_clients_.erase(found);
  Member& joined = *member;
  joined.link->listen(
      [this, &joined](const json& said) { on_message(joined, said); },
      [this, &joined](const std::string& loss) {
        on_disconnect(joined, loss);
      });
  members_[static_cast<size_t>(node)] = std::move(member);
  start_if_all_are_ready();
}

void RendezvousServer::on_message(Member& member, const json& message) {
  const std::string type = text_of(message, "type");
  if (type == "ready") {
    member.ready = true;
    start_if_all_are_ready();
  } else if (type == "failed") {
    fail(member, milliseconds(0));
  } else if (type == "signal") {
    const int signal = int_of(message, "signal", SIGTERM, kSignals);
    if (phase_ == Phase::kRunning) {
      stop_all({.signal = signal, .requested = true}, &member);
    } else if (phase_ == Phase::kBackoff) {
      send_result(
          {.code = 128 + signal,
           .line = failure_line(
               128 + signal,
               fmt::format(
                   "stopped by signal {} on host {}",
                   signal,
                   member.report.host),
               member.report.first_rank),
           .note = "",
           .restart_after = std::nullopt});
    }
  } else if (type == "end") {
    end(member, read_end(message));
  }
}

void RendezvousServer::on_disconnect(Member& member, const std::string& why) {
  HostReport& report = member.report;
  if (phase_ == Phase::kWaitingForHosts) {
    log_.warning(fmt::format(
        "host {} disconnected before the start: {}", report.host, why));
    return;
  }
  report.loss = why;
  report.failed = Clock::now();
  if (phase_ == Phase::kBackoff) {
    send_result(decide_result({report}));
  } else if (phase_ == Phase::kRunning) {
    log_.warning(fmt::format("host {} is lost: {}", report.host, why));
    stop_all({.signal = SIGTERM, .requested = false}, &member);
    finish_attempt();
  }
}

void RendezvousServer::ready() {
  own().ready = true;
  start_if_all_are_ready();
}

void RendezvousServer::start_if_all_are_ready() {
  const bool all = std::ranges::all_of(members_, [](const auto& member) {
    return member && member->ready &&
           (!member->link || member->link->is_open());
  });
  if (!all ||
      (phase_ != Phase::kWaitingForHosts && phase_ != Phase::kBackoff)) {
    return;
  }
  phase_ = Phase::kRunning;
  started_ = Clock::now();
  stop_at_.reset();
  order_.reset();
  const Bits256 random = random_bits();
  auth_listener_.begin_round(++round_, random);
  RankAssignment place;
  place.node_count = static_cast<int>(members_.size());
  place.world_size = 0;
  place.restart_count = restart_policy_.count();
  for (const auto& member : members_) {
    member->report.first_rank = place.world_size;
    place.world_size += member->report.worker_count;
    member->report.end = {};
    member->ready = member->ended = false;
  }
  for (const auto& member : members_) {
    if (member->link) {
      member->link->send(
          {{"type", "start"},
           {"epoch", round_},
           {"random", to_hex(random)},
           {"node", member->report.node_rank},
           {"nodes", place.node_count},
           {"first", member->report.first_rank},
           {"world", place.world_size},
           {"restarts", place.restart_count}});
    }
  }
  // The address at which the other hosts reached this one.
  place.bind_address = options_.hosts.local_addr.empty()
                           ? members_.back()->link->own_host()
                           : options_.hosts.local_addr;
  rank_assignment_ = place;
}

void RendezvousServer::fail(Member& member, milliseconds age) {
  if (phase_ == Phase::kRunning) {
    member.report.failed = Clock::now() - age;
    if (!stop_at_) {
      // This is the same delay as within a host.
      stop_at_ = Clock::now() + kCauseWindow;
    }
  }
}

void RendezvousServer::stop_all(
    const StopRequest& order,
    const Member* except) {
  if (except != &own()) {
    order_ = order;
  }
  broadcast(
      {{"type", "stop"},
       {"signal", order.signal},
       {"requested", order.requested ? 1 : 0}},
      except);
}

void RendezvousServer::end(Member& member, const HostResult& end) {
  if (phase_ != Phase::kRunning || member.ended) {
    return;
  }
  member.ended = true;
  member.report.end = end;
  if (end.code != 0) {
    fail(member, end.age);
    if (end.signal == 0) {
      stop_all({.signal = SIGTERM, .requested = false}, &member);
    }
  }
  finish_attempt();
}

void RendezvousServer::finish_attempt() {
  std::vector<HostReport> reports;
  for (const auto& member : members_) {
    if (!member->ended && member->report.loss.empty()) {
      return;
    }
    reports.push_back(member->report);
  }
  RunResult run_result = decide_result(reports);
  const bool may_restart = std::ranges::all_of(reports, [](const auto& report) {
    return report.loss.empty() && report.end.signal == 0;
  });
  if (may_restart) {
    restart_policy_.decide(run_result, since(started_));
  }
  send_result(run_result);
}

void RendezvousServer::send_result(const RunResult& run_result) {
  phase_ = run_result.restart_after ? Phase::kBackoff : Phase::kOver;
  run_result_ = run_result;
  broadcast(to_message(run_result));
}

void RendezvousServer::broadcast(const json& message, const Member* except) {
  for (const auto& member : members_) {
    if (member && member->link && member.get() != except) {
      member->link->send(message);
    }
  }
}

std::optional<RankAssignment> RendezvousServer::take_rank_assignment() {
  return std::exchange(rank_assignment_, std::nullopt);
}

void RendezvousServer::report_failure() {
  fail(own(), milliseconds(0));
}

void RendezvousServer::report_signal(int signal) {
  if (phase_ == Phase::kRunning) {
    stop_all({.signal = signal, .requested = true}, &own());
  } else if (phase_ != Phase::kOver) {
    send_result(
        {.code = 128 + signal,
         .line = failure_line(
             128 + signal,
             fmt::format(
                 "stopped by signal {} on host {}", signal, own().report.host)),
         .note = "",
         .restart_after = std::nullopt});
  }
}

std::optional<StopRequest> RendezvousServer::take_stop_request() {
  return std::exchange(order_, std::nullopt);
}

void RendezvousServer::end(const HostResult& end) {
  this->end(own(), end);
}

std::optional<RunResult> RendezvousServer::take_result() {
  return std::exchange(run_result_, std::nullopt);
}

} // namespace weft::launcher
