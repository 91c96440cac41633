#include "launcher/connection/forwarder.h"

#include <utility>

#include <sys/epoll.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr int kMostFailures = 20;

} // namespace

Forwarder::Forwarder(
    EventLoop& loop,
    const Address& gate,
    const Claim& claim,
    const Bits256& epoch_key)
    : loop_(loop),
      gate_(gate),
      claim_(claim),
      key_(epoch_key),
      listener_(listen_at(loopback(0))) {
  if (!listener_) {
    throw_errno("listening at 127.0.0.1");
  }
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_some(); });
}

Forwarder::~Forwarder() {
  loop_.forget(listener_.get());
}

void Forwarder::accept_some() {
  while (UniqueFd fd = accept_one(listener_.get())) {
    calls_.push_back(
        {.local = std::move(fd), .dialer = nullptr, .failures = 0});
    dial(calls_.back());
  }
}

void Forwarder::dial(Call& call) {
  call.dialer = std::make_unique<Dialer>(
      loop_, gate_, claim_, key_, [this, &call](Dialer::Outcome outcome) {
        if (outcome.result == DialResult::kWelcome) {
          streams_.emplace_back(
              loop_, std::move(call.local), std::move(outcome.fd));
        } else if (++call.failures == kMostFailures) {
          call.local.reset(); // as if nobody served
        }
      });
}

void Forwarder::tick() {
  for (auto call = calls_.begin(); call != calls_.end();) {
    call->dialer->tick();
    if (call->dialer->is_over() && !call->local) {
      call = calls_.erase(call);
      continue;
    }
    if (call->dialer->is_over()) {
      dial(*call);
    }
    ++call;
  }
  streams_.remove_if([](const Splice& stream) { return !stream.is_open(); });
}

} // namespace weft::launcher
