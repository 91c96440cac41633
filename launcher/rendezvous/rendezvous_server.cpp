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

constexpr milliseconds kTick{20};
constexpr milliseconds kFirstNote = seconds(5);
constexpr milliseconds kNextNote = seconds(60);
constexpr milliseconds kParting{500};

milliseconds since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration_cast<milliseconds>(
      std::chrono::steady_clock::now() - then);
}

} // namespace

Hub::Hub(
    const Options& options,
    const std::string& host_name,
    UniqueFd listener,
    const std::string& token,
    Say say)
    : options_(options),
      command_(command_digest(options)),
      say_(std::move(say)),
      loop_(kTick),
      gate_(
          loop_,
          std::move(listener),
          token,
          sha256(options.run_id),
          [this](UniqueFd fd, const Bits256& session) {
            admit(std::move(fd), session);
          },
          say_),
      members_(static_cast<size_t>(options.hosts.node_count)),
      restarts_(options.max_restarts),
      next_note_(Clock::now() + kFirstNote) {
  members_.front() = std::make_unique<Member>();
  own().report.host = host_name;
  own().report.worker_count = options.worker_count;
  loop_.on_tick([this] { tick(); });
}

Hub::~Hub() {
  for (const auto& member : members_) {
    if (member && member->link) {
      member->link->finish(kParting);
    }
  }
}

void Hub::tick() {
  gate_.tick();
  for (const auto& member : members_) {
    if (member && member->link) {
      member->link->tick();
    }
  }
  for (const auto& link : lobby_) {
    link->tick();
  }
  // Members and guests that have left are dropped here, not in their handlers.
  std::erase_if(lobby_, [](const auto& link) { return !link->is_open(); });
  if (phase_ == Phase::kGathering) {
    for (auto& member : members_) {
      if (member && member->link && !member->link->is_open()) {
        member.reset();
      }
    }
    say_who_is_missing();
  }
  if (stop_at_ && Clock::now() >= *stop_at_) {
    stop_at_.reset();
    stop_all({.signal = SIGTERM, .requested = false}, nullptr);
  }
}

void Hub::say_who_is_missing() {
  const auto now = Clock::now();
  const auto there = std::ranges::count_if(
      members_, [](const auto& member) { return member != nullptr; });
  const auto count = std::ssize(members_);
  if (there == count) {
    return;
  }
  if (now - gathering_since_ >= options_.hosts.join_timeout) {
    const std::string& refused = gate_.refused_host();
    announce(
        {.code = kPeerLost,
         .line = fmt::format(
             "ERROR {} rank=0 op=launch {} of {} hosts came within {} s "
             "(--rdzv-conf join_timeout){}. Start weftrun on the others, with "
             "the same --rdzv-endpoint, --rdzv-id and token.",
             kPeerLost,
             there,
             count,
             options_.hosts.join_timeout.count() / 1000.0,
             refused.empty() ? "" : "; refused was " + refused),
         .note = "",
         .restart_after = std::nullopt});
  } else if (now >= next_note_) {
    next_note_ = now + kNextNote;
    say_(fmt::format(
        "weftrun: {} of {} hosts are there; waiting for the others\n",
        there,
        count));
  }
}

void Hub::admit(UniqueFd fd, const Bits256& session) {
  lobby_.push_back(std::make_unique<Link>(
      loop_,
      std::move(fd),
      session,
      /*is_host0=*/true,
      KeepAlive{
          options_.hosts.keep_alive_interval,
          options_.hosts.keep_alive_attempts}));
  Link& link = *lobby_.back();
  link.listen(
      [this, &link](const json& message) { join(link, message); },
      [](const std::string&) {});
}

int Hub::place_for(const JoinRequest& request) const {
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

std::optional<Objection> Hub::objection(const JoinRequest& request) const {
  if (auto other = objection_to(
          request,
          {.host = members_.front()->report.host,
           .command = command_,
           .node_count = static_cast<int>(members_.size())})) {
    return other;
  }
  if (phase_ != Phase::kGathering) {
    return Objection{
        .why = fmt::format(
            "run '{}' has all its {} hosts and runs. Choose another --rdzv-id "
            "and --rdzv-endpoint for another run.",
            options_.run_id,
            members_.size())};
  }
  if (place_for(request) < 0) {
    return Objection{
        .why = options_.hosts.ranked_by_arrival
                   ? fmt::format("all {} hosts are there.", members_.size())
                   : fmt::format(
                         "--node-rank {} is taken. Give each host its own, 0 "
                         "to {}.",
                         request.node_rank,
                         members_.size() - 1)};
  }
  return std::nullopt;
}

void Hub::refuse(Link& link, const Objection& objection) {
  Verdict verdict;
  verdict.code = objection.code;
  verdict.line = fmt::format(
      "ERROR {} rank=0 op=launch {}", objection.code, objection.why);
  link.send(to_message(verdict));
  if (objection.is_fatal && phase_ == Phase::kGathering) {
    announce(verdict);
  }
}

void Hub::join(Link& link, const json& message) {
  if (text_of(message, "type") != "join") {
    return;
  }
  const auto request = read_join(message);
  if (const auto why = objection(request)) {
    refuse(link, *why);
    return;
  }
  const int node = place_for(request);
  auto member = std::make_unique<Member>();
  member->report.host = request.host;
  member->report.node_rank = node;
  member->report.worker_count = request.worker_count;
  member->ready = true;
  const auto found = std::ranges::find_if(
      lobby_, [&](const auto& guest) { return guest.get() == &link; });
  member->link = std::move(*found);
  lobby_.erase(found);
  Member& joined = *member;
  joined.link->listen(
      [this, &joined](const json& said) { hear(joined, said); },
      [this, &joined](const std::string& loss) { lose(joined, loss); });
  members_[static_cast<size_t>(node)] = std::move(member);
  start_if_all_are_ready();
}

void Hub::hear(Member& member, const json& message) {
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
    } else if (phase_ == Phase::kResting) {
      announce(
          {.code = 128 + signal,
           .line = fmt::format(
               "ERROR {} rank={} op=launch stopped by signal {} on host {}",
               128 + signal,
               member.report.first_rank,
               signal,
               member.report.host),
           .note = "",
           .restart_after = std::nullopt});
    }
  } else if (type == "end") {
    end(member, read_end(message));
  }
}

void Hub::lose(Member& member, const std::string& why) {
  HostReport& report = member.report;
  if (phase_ == Phase::kGathering) {
    say_(fmt::format("weftrun: host {} left again: {}\n", report.host, why));
    return;
  }
  report.loss = why;
  report.failed = Clock::now();
  if (phase_ == Phase::kResting) {
    announce(judge({report}));
  } else if (phase_ == Phase::kRunning) {
    say_(fmt::format("weftrun: host {} is lost: {}\n", report.host, why));
    stop_all({.signal = SIGTERM, .requested = false}, &member);
    conclude();
  }
}

void Hub::ready() {
  own().ready = true;
  start_if_all_are_ready();
}

void Hub::start_if_all_are_ready() {
  const bool all = std::ranges::all_of(members_, [](const auto& member) {
    return member && member->ready &&
           (!member->link || member->link->is_open());
  });
  if (!all || (phase_ != Phase::kGathering && phase_ != Phase::kResting)) {
    return;
  }
  phase_ = Phase::kRunning;
  started_ = Clock::now();
  stop_at_.reset();
  order_.reset();
  const Bits256 random = random_bits();
  gate_.begin_epoch(++epoch_, random);
  Placement place;
  place.node_count = static_cast<int>(members_.size());
  place.world_size = 0;
  place.restart_count = restarts_.count();
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
           {"epoch", epoch_},
           {"random", to_hex(random)},
           {"node", member->report.node_rank},
           {"nodes", place.node_count},
           {"first", member->report.first_rank},
           {"world", place.world_size},
           {"restarts", place.restart_count}});
    }
  }
  // The way on which the others came.
  place.bind_address = options_.hosts.local_addr.empty()
                           ? members_.back()->link->own_host()
                           : options_.hosts.local_addr;
  placement_ = place;
}

void Hub::fail(Member& member, milliseconds age) {
  if (phase_ == Phase::kRunning) {
    member.report.failed = Clock::now() - age;
    if (!stop_at_) {
      stop_at_ = Clock::now() + kCauseWindow; // as within a host
    }
  }
}

void Hub::stop_all(const StopOrder& order, const Member* except) {
  if (except != &own()) {
    order_ = order;
  }
  broadcast(
      {{"type", "stop"},
       {"signal", order.signal},
       {"requested", order.requested ? 1 : 0}},
      except);
}

void Hub::end(Member& member, const HostEnd& end) {
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
  conclude();
}

void Hub::conclude() {
  std::vector<HostReport> reports;
  for (const auto& member : members_) {
    if (!member->ended && member->report.loss.empty()) {
      return;
    }
    reports.push_back(member->report);
  }
  Verdict verdict = judge(reports);
  const bool may_restart = std::ranges::all_of(reports, [](const auto& report) {
    return report.loss.empty() && report.end.signal == 0;
  });
  if (may_restart) {
    restarts_.decide(verdict, since(started_));
  }
  announce(verdict);
}

void Hub::announce(const Verdict& verdict) {
  phase_ = verdict.restart_after ? Phase::kResting : Phase::kOver;
  verdict_ = verdict;
  broadcast(to_message(verdict));
}

void Hub::broadcast(const json& message, const Member* except) {
  for (const auto& member : members_) {
    if (member && member->link && member.get() != except) {
      member->link->send(message);
    }
  }
}

std::optional<Placement> Hub::take_placement() {
  return std::exchange(placement_, std::nullopt);
}

void Hub::report_failure() {
  fail(own(), milliseconds(0));
}

void Hub::report_signal(int signal) {
  if (phase_ == Phase::kRunning) {
    stop_all({.signal = signal, .requested = true}, &own());
  } else if (phase_ != Phase::kOver) {
    announce(
        {.code = 128 + signal,
         .line = fmt::format(
             "ERROR {} rank=0 op=launch stopped by signal {} on host {}",
             128 + signal,
             signal,
             own().report.host),
         .note = "",
         .restart_after = std::nullopt});
  }
}

std::optional<StopOrder> Hub::take_order() {
  return std::exchange(order_, std::nullopt);
}

void Hub::end(const HostEnd& end) {
  this->end(own(), end);
}

std::optional<Verdict> Hub::take_verdict() {
  return std::exchange(verdict_, std::nullopt);
}

} // namespace weft::launcher
