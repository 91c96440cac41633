#include "launcher/connection/forwarder.h"

#include <utility>

#include <sys/epoll.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr int kMaxFailures = 20;

} // namespace

Forwarder::Forwarder(
    EventLoop& loop,
    const Address& server,
    const ClientHello& client_hello,
    const Bits256& round_key)
    : loop_(loop),
      server_address_(server),
      claim_(client_hello),
      key_(round_key),
      listener_(listen_at(loopback(0))) {
  if (!listener_) {
    throw_errno("listening at the loopback address");
  }
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_some(); });
}

Forwarder::~Forwarder() {
  loop_.forget(listener_.get());
}

void Forwarder::accept_some() {
  while (base::UniqueFd fd = accept_one(listener_.get())) {
    calls_.push_back(
        {.local = std::move(fd), .connector = nullptr, .failures = 0});
    connect_to_server(calls_.back());
  }
}

void Forwarder::connect_to_server(Call& call) {
  call.connector = std::make_unique<Connector>(
      loop_,
      server_address_,
      claim_,
      key_,
      [this, &call](Connector::Outcome outcome) {
        if (outcome.result == ConnectResult::kAccepted) {
          streams_.emplace_back(
              loop_, std::move(call.local), std::move(outcome.fd));
        } else if (++call.failures == kMaxFailures) {
          call.local.reset(); // as if nobody served
        }
      });
}

void Forwarder::tick() {
  for (auto call = calls_.begin(); call != calls_.end();) {
    call->connector->tick();
    if (call->connector->is_over() && !call->local) {
      call = calls_.erase(call);
      continue;
    }
    if (call->connector->is_over()) {
      connect_to_server(*call);
    }
    ++call;
  }
  streams_.remove_if([](const Relay& stream) { return !stream.is_open(); });
}

} // namespace weft::launcher
