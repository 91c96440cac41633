#include "launcher/rendezvous/auth_listener.h"

#include <array>
#include <cerrno>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "launcher/connection/address.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostStrangers = 64;
constexpr size_t kMostStreams = 16384;
constexpr std::chrono::seconds kAnswerTime{2};
/// At most so many at a time: the loop has other work, too.
constexpr int kAccepts = 32;
constexpr milliseconds kStoreRetry{5};

/// 1: connected, 0: not yet, -1: nobody listens.
int connection_state(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    return -1;
  }
  sockaddr_storage peer{};
  size = sizeof(peer);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 ? 1
                                                                         : 0;
}

} // namespace

Gate::Gate(
    EventLoop& loop,
    UniqueFd listener,
    const std::string& token,
    const Bits256& job,
    OnControl on_control,
    Say say)
    : loop_(loop),
      listener_(std::move(listener)),
      token_(token),
      control_key_(control_key(token)),
      job_(job),
      on_control_(std::move(on_control)),
      refusals_(std::move(say)) {
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_some(); });
}

Gate::~Gate() {
  loop_.forget(listener_.get());
  for (const auto& stranger : strangers_) {
    loop_.forget(stranger.fd.get());
  }
}

void Gate::begin_epoch(uint64_t epoch, const Bits256& random) {
  streams_.clear();
  waiting_.clear();
  store_port_ = 0;
  epoch_ = epoch;
  epoch_key_ = epoch_key(token_, job_, epoch, random);
}

void Gate::accept_some() {
  for (int i = 0; i < kAccepts; ++i) {
    UniqueFd fd = accept_one(listener_.get());
    if (!fd) {
      return;
    }
    greet(std::move(fd));
  }
}

void Gate::greet(UniqueFd fd) {
  if (strangers_.size() >= kMostStrangers) {
    // Whoever knows the token answers at once, so the oldest does not.
    turn_away(strangers_.begin(), Refusal::kTooMany);
  }
  const Bits256 nonce = random_bits();
  const std::string challenge = make_challenge(nonce);
  if (send(fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(challenge.size())) {
    return;
  }
  strangers_.push_back(
      {.fd = std::move(fd),
       .challenge = nonce,
       .incoming = "",
       .deadline = Clock::now() + kAnswerTime});
  const auto stranger = std::prev(strangers_.end());
  loop_.watch(stranger->fd.get(), EPOLLIN, [this, stranger](uint32_t) {
    hear(stranger);
  });
}

void Gate::hear(const std::list<Stranger>::iterator& stranger) {
  std::array<char, kAnswerSize> buffer;
  const size_t wanted = kAnswerSize - stranger->incoming.size();
  const ssize_t size = recv(stranger->fd.get(), buffer.data(), wanted, 0);
  if (size > 0) {
    stranger->incoming.append(buffer.data(), static_cast<size_t>(size));
    if (stranger->incoming.size() == kAnswerSize) {
      judge(stranger);
    }
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    turn_away(stranger, Refusal::kNoAnswer);
  }
}

void Gate::judge(const std::list<Stranger>::iterator& stranger) {
  const std::string answer = stranger->incoming;
  Claim claim;
  if (!read_answer(answer, claim)) {
    turn_away(stranger, Refusal::kNoWeftrun);
    return;
  }
  const bool is_control = claim.role == Role::kControl;
  if (!is_control && claim.epoch != epoch_) {
    turn_away(stranger, Refusal::kEarlierStart);
    return;
  }
  const Bits256& key = is_control ? control_key_ : epoch_key_;
  if (!is_proven(answer, stranger->challenge, view(key))) {
    turn_away(stranger, Refusal::kOtherToken);
    return;
  }
  const bool is_ours = is_equal(view(claim.job), view(job_));
  const std::string reply = make_reply(
      is_ours ? GateStatus::kWelcome : GateStatus::kOtherJob,
      answer,
      stranger->challenge,
      view(key));
  if (send(stranger->fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(reply.size()) ||
      !is_ours) {
    turn_away(stranger, Refusal::kOtherJob);
    return;
  }
  loop_.forget(stranger->fd.get());
  UniqueFd fd = std::move(stranger->fd);
  const Bits256 session = session_key(claim, stranger->challenge, view(key));
  strangers_.erase(stranger);
  if (is_control) {
    on_control_(std::move(fd), session);
  } else if (streams_.size() + waiting_.size() < kMostStreams) {
    waiting_.push_back(
        {.fd = std::move(fd), .store = UniqueFd(), .next_try = Clock::now()});
    connect_waiting();
  }
}

void Gate::turn_away(
    const std::list<Stranger>::iterator& stranger,
    Refusal why) {
  loop_.forget(stranger->fd.get());
  const std::string host = peer_address(stranger->fd.get()).host();
  strangers_.erase(stranger);
  refusals_.note(host, why);
}

bool Gate::connect_store(Waiting& waiting) {
  if (!waiting.store && store_port_ != 0 && Clock::now() >= waiting.next_try) {
    waiting.store = start_connecting(loopback(store_port_));
    waiting.next_try = Clock::now() + kStoreRetry;
  }
  if (!waiting.store) {
    return false;
  }
  const int state = connection_state(waiting.store.get());
  if (state < 0) { // asked once: the kernel tells an error only once
    waiting.store.reset();
  }
  return state > 0;
}

/// Rank 0 may not serve the store yet.
void Gate::connect_waiting() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (connect_store(*it)) {
      streams_.emplace_back(loop_, std::move(it->fd), std::move(it->store));
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
}

void Gate::tick() {
  const auto now = Clock::now();
  while (!strangers_.empty() && strangers_.front().deadline <= now) {
    turn_away(strangers_.begin(), Refusal::kLate);
  }
  connect_waiting();
  streams_.remove_if([](const Splice& stream) { return !stream.is_open(); });
}

} // namespace weft::launcher
