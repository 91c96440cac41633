#include "launcher/rendezvous/rendezvous_client.h"

#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/process/outcome.h"
#include "launcher/rendezvous/messages.h"

namespace weft::launcher {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kRedial{200};
/// The time after which a host name that cannot be resolved is an error.
constexpr milliseconds kNamePatience = seconds(5);
/// The number of refusals after which the client gives up. A server with too
/// many unauthenticated peers may also refuse a valid one.
constexpr int kRefusals = 3;

} // namespace

RendezvousClient::RendezvousClient(
    const Options& options,
    const std::string& host_name,
    const std::string& token,
    base::Logger log)
    : options_(options),
      host_name_(host_name),
      token_(token),
      job_(sha256(options.run_id)),
      log_(std::move(log)),
      loop_(kTick),
      next_connect_(Clock::now()),
      next_note_(Clock::now() + kFirstNote) {
  loop_.on_tick([this] { tick(); });
}

std::string RendezvousClient::endpoint() const {
  return fmt::format("{}:{}", options_.hosts.address, options_.hosts.port);
}

void RendezvousClient::ready() {
  // The workers of the previous attempt have ended.
  forwarder_.reset();
  if (link_) {
    link_->send({{"type", "ready"}});
  } else {
    connect_to_server();
  }
}

void RendezvousClient::tick() {
  if (connector_) {
    connector_->tick();
    if (connector_->is_over()) {
      connector_.reset();
    }
  }
  if (link_) {
    link_->tick();
  } else if (!connector_ && !over_ && Clock::now() >= next_connect_) {
    connect_to_server();
  }
  if (forwarder_) {
    forwarder_->tick();
  }
}

void RendezvousClient::connect_to_server() {
  std::string why;
  server_address_ = resolve(options_.hosts.address, options_.hosts.port, why);
  if (!server_address_) {
    if (Clock::now() - since_ >= kNamePatience) {
      give_up(
          2,
          fmt::format(
              "host 0's name '{}' cannot be resolved on this host ({}). Use a "
              "name or address in --rdzv-endpoint that all hosts can resolve.",
              options_.hosts.address,
              why));
    } else {
      retry(why);
    }
    return;
  }
  ClientHello client_hello;
  client_hello.role = Role::kControl;
  client_hello.node = static_cast<uint32_t>(options_.hosts.node_rank);
  client_hello.job = job_;
  connector_ = std::make_unique<Connector>(
      loop_,
      *server_address_,
      client_hello,
      control_key(token_),
      [this](Connector::Outcome outcome) { on_connected(std::move(outcome)); });
}

void RendezvousClient::on_connected(Connector::Outcome outcome) {
  switch (outcome.result) {
    case ConnectResult::kAccepted:
      join(std::move(outcome));
      break;
    case ConnectResult::kUnreachable:
      retry(outcome.why);
      break;
    case ConnectResult::kNotWeftrun:
      if (++auth_failures_ < kRefusals) {
        retry(outcome.why);
      } else {
        give_up(
            2,
            fmt::format(
                "the program listening at {} is not a matching weftrun: {}. "
                "Use the --rdzv-endpoint of host 0, and the same weftrun "
                "version.",
                endpoint(),
                outcome.why));
      }
      break;
    case ConnectResult::kRefused:
      if (++auth_failures_ < kRefusals) {
        retry(outcome.why);
      } else {
        give_up(
            2,
            fmt::format(
                "host 0 at {} has a different token. Copy its --token-file to "
                "this host.",
                endpoint()));
      }
      break;
    case ConnectResult::kOtherJob:
      give_up(
          2,
          fmt::format(
              "the run at {} has a different --rdzv-id than '{}'. Use the same "
              "id on all hosts, or another endpoint for this run.",
              endpoint(),
              options_.run_id));
      break;
  }
}

void RendezvousClient::retry(const std::string& why) {
  const auto now = Clock::now();
  next_connect_ = now + kRedial;
  if (now - since_ >= options_.hosts.join_timeout) {
    give_up(
        kPeerLost,
        fmt::format(
            "host 0 did not answer at {} within {} s (--rdzv-conf "
            "join_timeout): {}.",
            endpoint(),
            options_.hosts.join_timeout.count() / 1000.0,
            why));
  } else if (now >= next_note_) {
    next_note_ = now + kNextNote;
    log_.info(fmt::format("waiting for host 0 at {}: {}", endpoint(), why));
  }
}

void RendezvousClient::join(Connector::Outcome outcome) {
  link_ = std::make_unique<ControlConnection>(
      loop_,
      std::move(outcome.fd),
      outcome.session,
      /*is_host0=*/false,
      KeepAlive{
          options_.hosts.keep_alive_interval,
          options_.hosts.keep_alive_attempts});
  link_->listen(
      [this](const json& message) { on_message(message); },
      [this](const std::string& why) { on_disconnect(why); });
  link_->send(
      {{"type", "join"},
       {"host", host_name_},
       {"node", options_.hosts.node_rank},
       {"nodes", options_.hosts.node_count},
       {"workers", options_.worker_count},
       {"version", WEFT_VERSION},
       {"command", command_digest(options_)}});
}

void RendezvousClient::on_message(const json& message) {
  const std::string type = text_of(message, "type");
  if (type == "start") {
    start(message);
  } else if (type == "stop") {
    order_ = {
        .signal = int_of(message, "signal", SIGTERM, kSignals),
        .requested = int_of(message, "requested", 0) != 0};
  } else if (type == "verdict") {
    run_result_ = read_result(message);
    over_ = !run_result_->restart_after;
  }
}

void RendezvousClient::start(const json& message) {
  Bits256 random{};
  const auto placed = read_rank_assignment(message, options_.worker_count);
  if (!placed || !from_hex(text_of(message, "random"), random)) {
    give_up(2, "host 0 sent a start that this weftrun does not understand.");
    return;
  }
  ClientHello client_hello;
  client_hello.role = Role::kStream;
  client_hello.node = static_cast<uint32_t>(placed->node_rank);
  client_hello.round = static_cast<uint64_t>(int_of(message, "epoch", 0));
  client_hello.job = job_;
  order_.reset();
  forwarder_ = std::make_unique<Forwarder>(
      loop_,
      *server_address_,
      client_hello,
      round_key(token_, job_, client_hello.round, random));
  RankAssignment place = *placed;
  place.master_port = forwarder_->port();
  place.bind_address = options_.hosts.local_addr.empty()
                           ? link_->own_host()
                           : options_.hosts.local_addr;
  rank_assignment_ = place;
}

void RendezvousClient::on_disconnect(const std::string& why) {
  if (over_) {
    return;
  }
  order_ = {.signal = SIGTERM, .requested = false};
  give_up(kPeerLost, fmt::format("host 0 at {} was lost: {}", endpoint(), why));
}

void RendezvousClient::give_up(int code, const std::string& sentence) {
  over_ = true;
  run_result_.emplace();
  run_result_->code = code;
  run_result_->line = failure_line(code, sentence);
}

std::optional<RankAssignment> RendezvousClient::take_rank_assignment() {
  return std::exchange(rank_assignment_, std::nullopt);
}

void RendezvousClient::report_failure() {
  if (link_) {
    link_->send({{"type", "failed"}});
  }
}

void RendezvousClient::report_signal(int signal) {
  if (link_) {
    link_->send({{"type", "signal"}, {"signal", signal}});
  }
}

std::optional<StopRequest> RendezvousClient::take_stop_request() {
  return std::exchange(order_, std::nullopt);
}

void RendezvousClient::end(const HostResult& end) {
  if (link_) {
    link_->send(to_message(end));
  }
}

std::optional<RunResult> RendezvousClient::take_result() {
  return std::exchange(run_result_, std::nullopt);
}

} // namespace weft::launcher
