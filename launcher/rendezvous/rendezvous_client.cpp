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

constexpr milliseconds kTick{20};
constexpr milliseconds kRedial{200};
constexpr milliseconds kFirstNote = seconds(5);
constexpr milliseconds kNextNote = seconds(60);
/// A name that nobody knows for so long will stay unknown.
constexpr milliseconds kNamePatience = seconds(5);
/// A gate under attack may hang up on friends; the same answer three times
/// means us.
constexpr int kRefusals = 3;

} // namespace

Spoke::Spoke(
    const Options& options,
    const std::string& host_name,
    const std::string& token,
    Say say)
    : options_(options),
      host_name_(host_name),
      token_(token),
      job_(sha256(options.run_id)),
      say_(std::move(say)),
      loop_(kTick),
      next_dial_(Clock::now()),
      next_note_(Clock::now() + kFirstNote) {
  loop_.on_tick([this] { tick(); });
}

std::string Spoke::endpoint() const {
  return fmt::format("{}:{}", options_.hosts.address, options_.hosts.port);
}

void Spoke::ready() {
  forwarder_.reset(); // workers of an earlier start are gone
  if (link_) {
    link_->send({{"type", "ready"}});
  } else {
    dial();
  }
}

void Spoke::tick() {
  if (dialer_) {
    dialer_->tick();
    if (dialer_->is_over()) {
      dialer_.reset();
    }
  }
  if (link_) {
    link_->tick();
  } else if (!dialer_ && !over_ && Clock::now() >= next_dial_) {
    dial();
  }
  if (forwarder_) {
    forwarder_->tick();
  }
}

void Spoke::dial() {
  std::string why;
  gate_ = resolve(options_.hosts.address, options_.hosts.port, why);
  if (!gate_) {
    if (Clock::now() - since_ >= kNamePatience) {
      give_up(
          2,
          fmt::format(
              "host 0's name '{}' is unknown here ({}). Give --rdzv-endpoint "
              "a name or address that all hosts know.",
              options_.hosts.address,
              why));
    } else {
      retry(why);
    }
    return;
  }
  Claim claim;
  claim.role = Role::kControl;
  claim.node = static_cast<uint32_t>(options_.hosts.node_rank);
  claim.job = job_;
  dialer_ = std::make_unique<Dialer>(
      loop_,
      *gate_,
      claim,
      control_key(token_),
      [this](Dialer::Outcome outcome) { dialed(std::move(outcome)); });
}

void Spoke::dialed(Dialer::Outcome outcome) {
  switch (outcome.result) {
    case DialResult::kWelcome:
      join(std::move(outcome));
      break;
    case DialResult::kUnreachable:
      retry(outcome.why);
      break;
    case DialResult::kNoGate:
      if (++refusals_ < kRefusals) {
        retry(outcome.why);
      } else {
        give_up(
            2,
            fmt::format(
                "what listens at {} is no weftrun of this kind: {}. Give the "
                "--rdzv-endpoint that host 0 has, and the same weftrun.",
                endpoint(),
                outcome.why));
      }
      break;
    case DialResult::kRefused:
      if (++refusals_ < kRefusals) {
        retry(outcome.why);
      } else {
        give_up(
            2,
            fmt::format(
                "host 0 at {} has another token. Copy its --token-file to this "
                "host.",
                endpoint()));
      }
      break;
    case DialResult::kOtherJob:
      give_up(
          2,
          fmt::format(
              "the run at {} has another --rdzv-id than '{}'. Give all hosts "
              "the same, or this run another endpoint.",
              endpoint(),
              options_.run_id));
      break;
  }
}

void Spoke::retry(const std::string& why) {
  const auto now = Clock::now();
  next_dial_ = now + kRedial;
  if (now - since_ >= options_.hosts.join_timeout) {
    give_up(
        kPeerLost,
        fmt::format(
            "host 0 was not there at {} within {} s (--rdzv-conf "
            "join_timeout): {}.",
            endpoint(),
            options_.hosts.join_timeout.count() / 1000.0,
            why));
  } else if (now >= next_note_) {
    next_note_ = now + kNextNote;
    say_(fmt::format(
        "weftrun: waiting for host 0 at {}: {}\n", endpoint(), why));
  }
}

void Spoke::join(Dialer::Outcome outcome) {
  link_ = std::make_unique<Link>(
      loop_,
      std::move(outcome.fd),
      outcome.session,
      /*is_host0=*/false,
      KeepAlive{
          options_.hosts.keep_alive_interval,
          options_.hosts.keep_alive_attempts});
  link_->listen(
      [this](const json& message) { hear(message); },
      [this](const std::string& why) { lose(why); });
  link_->send(
      {{"type", "join"},
       {"host", host_name_},
       {"node", options_.hosts.node_rank},
       {"nodes", options_.hosts.node_count},
       {"workers", options_.worker_count},
       {"version", WEFT_VERSION},
       {"command", command_digest(options_)}});
}

void Spoke::hear(const json& message) {
  const std::string type = text_of(message, "type");
  if (type == "start") {
    start(message);
  } else if (type == "stop") {
    order_ = {
        .signal = int_of(message, "signal", SIGTERM, kSignals),
        .requested = int_of(message, "requested", 0) != 0};
  } else if (type == "verdict") {
    verdict_ = read_verdict(message);
    over_ = !verdict_->restart_after;
  }
}

void Spoke::start(const json& message) {
  Bits256 random{};
  const auto placed = read_placement(message, options_.worker_count);
  if (!placed || !from_hex(text_of(message, "random"), random)) {
    give_up(2, "host 0 sent a start that this weftrun does not understand.");
    return;
  }
  Claim claim;
  claim.role = Role::kStream;
  claim.node = static_cast<uint32_t>(placed->node_rank);
  claim.epoch = static_cast<uint64_t>(int_of(message, "epoch", 0));
  claim.job = job_;
  order_.reset();
  forwarder_ = std::make_unique<Forwarder>(
      loop_, *gate_, claim, epoch_key(token_, job_, claim.epoch, random));
  Placement place = *placed;
  place.master_port = forwarder_->port();
  place.bind_address = options_.hosts.local_addr.empty()
                           ? link_->own_host()
                           : options_.hosts.local_addr;
  placement_ = place;
}

void Spoke::lose(const std::string& why) {
  if (over_) {
    return;
  }
  order_ = {.signal = SIGTERM, .requested = false};
  give_up(kPeerLost, fmt::format("host 0 at {} was lost: {}", endpoint(), why));
}

void Spoke::give_up(int code, const std::string& sentence) {
  over_ = true;
  verdict_.emplace();
  verdict_->code = code;
  verdict_->line = fmt::format("ERROR {} rank=0 op=launch {}", code, sentence);
}

std::optional<Placement> Spoke::take_placement() {
  return std::exchange(placement_, std::nullopt);
}

void Spoke::report_failure() {
  if (link_) {
    link_->send({{"type", "failed"}});
  }
}

void Spoke::report_signal(int signal) {
  if (link_) {
    link_->send({{"type", "signal"}, {"signal", signal}});
  }
}

std::optional<StopOrder> Spoke::take_order() {
  return std::exchange(order_, std::nullopt);
}

void Spoke::end(const HostEnd& end) {
  if (link_) {
    link_->send(to_message(end));
  }
}

std::optional<Verdict> Spoke::take_verdict() {
  return std::exchange(verdict_, std::nullopt);
}

} // namespace weft::launcher
