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

constexpr size_t kMaxUnauthenticatedPeers = 64;
constexpr size_t kMaxStreams = 16384;
constexpr std::chrono::seconds kAnswerTime{2};
/// The most connections that are accepted per call, because the event loop has
/// other work, too.
constexpr int kAccepts = 32;
constexpr milliseconds kStoreRetry{5};

/// Returns 1 if connected, 0 if not yet, -1 if nothing listens.
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

AuthListener::AuthListener(
    EventLoop& loop,
    base::UniqueFd listener,
    const std::string& token,
    const Bits256& job,
    OnControl on_control,
    base::Logger log)
    : loop_(loop),
      listener_(std::move(listener)),
      token_(token),
      control_key_(control_key(token)),
      job_(job),
      on_control_(std::move(on_control)),
      auth_failures_(std::move(log)) {
  loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept_some(); });
}

AuthListener::~AuthListener() {
  loop_.forget(listener_.get());
  for (const auto& client : unauthenticated_peers_) {
    loop_.forget(client.fd.get());
  }
}

void AuthListener::begin_round(uint64_t round, const Bits256& random) {
  streams_.clear();
  waiting_.clear();
  store_port_ = 0;
  round_ = round;
  round_key_ = round_key(token_, job_, round, random);
}

void AuthListener::accept_some() {
  for (int i = 0; i < kAccepts; ++i) {
    base::UniqueFd fd = accept_one(listener_.get());
    if (!fd) {
      return;
    }
    send_challenge(std::move(fd));
  }
}

void AuthListener::send_challenge(base::UniqueFd fd) {
  if (unauthenticated_peers_.size() >= kMaxUnauthenticatedPeers) {
    // A peer with the token answers at once, so the oldest peer has none.
    reject(unauthenticated_peers_.begin(), AuthFailure::kTooMany);
  }
  const Bits256 nonce = random_bits();
  const std::string challenge = make_challenge(nonce);
  if (send(fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(challenge.size())) {
    return;
  }
  unauthenticated_peers_.push_back(
      {.fd = std::move(fd),
       .challenge = nonce,
       .incoming = "",
       .deadline = Clock::now() + kAnswerTime});
  const auto client = std::prev(unauthenticated_peers_.end());
  loop_.watch(client->fd.get(), EPOLLIN, [this, client](uint32_t) {
    on_readable(client);
  });
}

void AuthListener::on_readable(
    const std::list<UnauthenticatedPeer>::iterator& client) {
  std::array<char, kAnswerSize> buffer;
  const size_t wanted = kAnswerSize - client->incoming.size();
  const ssize_t size = recv(client->fd.get(), buffer.data(), wanted, 0);
  if (size > 0) {
    client->incoming.append(buffer.data(), static_cast<size_t>(size));
    if (client->incoming.size() == kAnswerSize) {
      authenticate(client);
    }
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    reject(client, AuthFailure::kNoAnswer);
  }
}

void AuthListener::authenticate(
    const std::list<UnauthenticatedPeer>::iterator& client) {
  const std::string answer = client->incoming;
  ClientHello client_hello;
  if (!read_answer(answer, client_hello)) {
    reject(client, AuthFailure::kNoWeftrun);
    return;
  }
  const bool is_control = client_hello.role == Role::kControl;
  if (!is_control && client_hello.round != round_) {
    reject(client, AuthFailure::kEarlierStart);
    return;
  }
  const Bits256& key = is_control ? control_key_ : round_key_;
  if (!verify_mac(answer, client->challenge, view(key))) {
    reject(client, AuthFailure::kOtherToken);
    return;
  }
  const bool is_ours = is_equal(view(client_hello.job), view(job_));
  const std::string reply = make_reply(
      is_ours ? AuthStatus::kAccepted : AuthStatus::kOtherJob,
      answer,
      client->challenge,
      view(key));
  if (send(client->fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(reply.size()) ||
      !is_ours) {
    reject(client, AuthFailure::kOtherJob);
    return;
  }
  loop_.forget(client->fd.get());
  base::UniqueFd fd = std::move(client->fd);
  const Bits256 session =
      session_key(client_hello, client->challenge, view(key));
  unauthenticated_peers_.erase(client);
  if (is_control) {
    on_control_(std::move(fd), session);
  } else if (streams_.size() + waiting_.size() < kMaxStreams) {
    waiting_.push_back(
        {.fd = std::move(fd),
         .store = base::UniqueFd(),
         .next_try = Clock::now()});
    connect_waiting();
  }
}

void AuthListener::reject(
    const std::list<UnauthenticatedPeer>::iterator& client,
    AuthFailure why) {
  loop_.forget(client->fd.get());
  const std::string host = peer_address(client->fd.get()).host();
  unauthenticated_peers_.erase(client);
  auth_failures_.note(host, why);
}

bool AuthListener::connect_store(Waiting& waiting) {
  if (!waiting.store && store_port_ != 0 && Clock::now() >= waiting.next_try) {
    waiting.store = start_connecting(loopback(store_port_));
    waiting.next_try = Clock::now() + kStoreRetry;
  }
  if (!waiting.store) {
    return false;
  }
  const int state = connection_state(waiting.store.get());
  if (state < 0) {
    // The kernel reports a socket error only once.
    waiting.store.reset();
  }
  return state > 0;
}

/// Connects the waiting streams whose next attempt is due. Rank 0 may not serve
/// the store yet.
void AuthListener::connect_waiting() {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (connect_store(*it)) {
      streams_.emplace_back(loop_, std::move(it->fd), std::move(it->store));
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
}

void AuthListener::tick() {
  const auto now = Clock::now();
  while (!unauthenticated_peers_.empty() &&
         unauthenticated_peers_.front().deadline <= now) {
    reject(unauthenticated_peers_.begin(), AuthFailure::kLate);
  }
  connect_waiting();
  streams_.remove_if([](const Relay& stream) { return !stream.is_open(); });
}

} // namespace weft::launcher
