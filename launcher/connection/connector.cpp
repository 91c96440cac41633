#include "launcher/connection/connector.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace weft::launcher {
namespace {

using Clock = std::chrono::steady_clock;
/// The timeout of a connection and of the server's answer. It is slightly
/// longer than the server's own timeout.
constexpr std::chrono::seconds kPatience{3};

} // namespace

Connector::Connector(
    EventLoop& loop,
    const Address& address,
    ClientHello client_hello,
    const Bits256& key,
    Done done)
    : loop_(loop),
      claim_(client_hello),
      key_(key),
      done_(std::move(done)),
      fd_(start_connecting(address)),
      deadline_(Clock::now() + kPatience) {
  error_ = errno;
  claim_.nonce = random_bits();
  if (fd_) {
    loop_.watch(fd_.get(), EPOLLOUT, [this](uint32_t) { handle(); });
  }
}

Connector::~Connector() {
  if (fd_) {
    loop_.forget(fd_.get());
  }
}

void Connector::tick() {
  if (is_over()) {
    return;
  }
  if (!fd_) {
    finish(ConnectResult::kUnreachable, std::strerror(error_));
  } else if (Clock::now() >= deadline_) {
    // The silent peer may be a weftrun that is stopped or busy, so the result
    // is one after which the caller retries.
    finish(
        ConnectResult::kUnreachable,
        state_ == State::kConnecting ? "no answer" : "it says nothing");
  }
}

void Connector::handle() {
  if (is_over()) {
    return;
  }
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      finish(ConnectResult::kUnreachable, std::strerror(error));
      return;
    }
    sockaddr_storage peer{};
    size = sizeof(peer);
    if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &size) !=
        0) {
      return; // The connection is not established yet.
    }
    state_ = State::kChallenge;
    deadline_ = Clock::now() + kPatience;
    loop_.change(fd_.get(), EPOLLIN);
  } else if (state_ == State::kChallenge && receive(kChallengeSize)) {
    answer();
  } else if (state_ == State::kReply && receive(kReplySize)) {
    read_verdict();
  }
}

/// Receives more of a message. Returns true if `incoming_` has all its `size`
/// bytes.
bool Connector::receive(size_t size) {
  std::array<char, kAnswerSize> buffer;
  const ssize_t got =
      recv(fd_.get(), buffer.data(), size - incoming_.size(), 0);
  if (got > 0) {
    incoming_.append(buffer.data(), static_cast<size_t>(got));
    return incoming_.size() == size;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    finish(
        state_ == State::kReply ? ConnectResult::kRefused
                                : ConnectResult::kNotWeftrun,
        "it closed the connection");
  }
  return false;
}

void Connector::answer() {
  if (!read_challenge(incoming_, challenge_)) {
    finish(ConnectResult::kNotWeftrun, "it says something else");
    return;
  }
  incoming_.clear();
  answer_ = make_answer(claim_, challenge_, view(key_));
  // The answer is so short that a new connection accepts all of it at once.
  if (send(fd_.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(answer_.size())) {
    finish(ConnectResult::kUnreachable, std::strerror(errno));
    return;
  }
  state_ = State::kReply;
}

void Connector::read_verdict() {
  AuthStatus status = AuthStatus::kAccepted;
  if (!read_reply(incoming_, answer_, challenge_, view(key_), status)) {
    finish(ConnectResult::kRefused, "it does not know the token");
  } else if (status == AuthStatus::kAccepted) {
    finish(ConnectResult::kAccepted);
  } else {
    finish(ConnectResult::kOtherJob);
  }
}

void Connector::finish(ConnectResult result, const std::string& why) {
  if (fd_) {
    loop_.forget(fd_.get());
  }
  Outcome outcome;
  outcome.result = result;
  outcome.why = why;
  if (result == ConnectResult::kAccepted) {
    outcome.fd = std::move(fd_);
    outcome.session = session_key(claim_, challenge_, view(key_));
  }
  fd_.reset();
  const auto done = std::exchange(done_, nullptr);
  done(std::move(outcome));
}

} // namespace weft::launcher
