#include "launcher/rendezvous/control_connection.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "launcher/connection/address.h"
#include "launcher/rendezvous/messages.h"

namespace weft::launcher {
namespace {

constexpr size_t kLengthSize = 4;
constexpr size_t kCodeSize = 32;
constexpr uint32_t kMaxBytes = 64 * 1024;
/// The most bytes that are queued for a peer that does not read.
constexpr size_t kMaxQueued = size_t{1024} * 1024;

} // namespace

ControlConnection::ControlConnection(
    EventLoop& loop,
    base::UniqueFd fd,
    const Bits256& key,
    bool is_host0,
    KeepAlive keep_alive)
    : loop_(loop),
      fd_(std::move(fd)),
      key_(key),
      own_direction_(is_host0 ? 'h' : 'n'),
      other_direction_(is_host0 ? 'n' : 'h'),
      keep_alive_(keep_alive) {
  loop_.watch(fd_.get(), EPOLLIN, [this](uint32_t events) { handle(events); });
}

ControlConnection::~ControlConnection() {
  if (fd_) {
    loop_.forget(fd_.get());
  }
}

void ControlConnection::listen(OnMessage on_message, OnLost on_lost) {
  on_message_ = std::move(on_message);
  on_lost_ = std::move(on_lost);
}

std::string ControlConnection::own_host() const {
  return own_address(fd_.get()).host();
}

Bits256 ControlConnection::code(
    char direction,
    uint64_t number,
    std::string_view text) const {
  std::string signed_text(1, direction);
  signed_text.append(reinterpret_cast<const char*>(&number), sizeof(number));
  signed_text.append(text);
  return hmac_sha256(view(key_), signed_text);
}

void ControlConnection::send(const nlohmann::json& message) {
  if (!fd_) {
    return;
  }
  const std::string text = base::json_text(message);
  const auto size = static_cast<uint32_t>(text.size());
  if (size > kMaxBytes || outgoing_.size() > kMaxQueued) {
    on_disconnect("it does not read");
    return;
  }
  outgoing_.append(reinterpret_cast<const char*>(&size), kLengthSize);
  outgoing_.append(text);
  outgoing_.append(view(code(own_direction_, sent_++, text)));
  last_sent_ = Clock::now();
  if (!write_some()) {
    on_disconnect("its connection broke");
  }
}

bool ControlConnection::write_some() {
  while (!outgoing_.empty()) {
    const ssize_t size =
        ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (size < 0) {
      if (errno != EAGAIN && errno != EINTR) {
        return false;
      }
      break;
    }
    outgoing_.erase(0, static_cast<size_t>(size));
  }
  loop_.change(fd_.get(), outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  return true;
}

void ControlConnection::handle(uint32_t) {
  const bool open = read_some();
  take_frames();
  if (!fd_) {
    return;
  }
  if (!open) {
    on_disconnect("its connection closed");
  } else if (!outgoing_.empty() && !write_some()) {
    on_disconnect("its connection broke");
  }
}

bool ControlConnection::read_some() {
  std::array<char, 16384> buffer;
  const ssize_t size = recv(fd_.get(), buffer.data(), buffer.size(), 0);
  if (size > 0) {
    incoming_.append(buffer.data(), static_cast<size_t>(size));
    last_heard_ = Clock::now();
  }
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

void ControlConnection::take_frames() {
  while (fd_ && incoming_.size() >= kLengthSize) {
    uint32_t size = 0;
    std::memcpy(&size, incoming_.data(), kLengthSize);
    if (size > kMaxBytes) {
      on_disconnect("it sent a message that is too long");
      return;
    }
    if (incoming_.size() < kLengthSize + size + kCodeSize) {
      return;
    }
    const std::string text = incoming_.substr(kLengthSize, size);
    const std::string received =
        incoming_.substr(kLengthSize + size, kCodeSize);
    incoming_.erase(0, kLengthSize + size + kCodeSize);
    if (!is_equal(received, view(code(other_direction_, received_++, text)))) {
      on_disconnect("a message of it was changed on the way");
      return;
    }
    const auto message = base::try_parse_json(text);
    if (!message.is_object()) {
      on_disconnect("it sent no JSON");
      return;
    }
    if (text_of(message, "type") != "ping" && on_message_) {
      // The handler may replace on_message_ while it runs.
      const auto handler = on_message_;
      handler(message);
    }
  }
}

void ControlConnection::tick() {
  if (!fd_) {
    return;
  }
  const auto now = Clock::now();
  if (now - last_heard_ > keep_alive_.interval * keep_alive_.attempts) {
    on_disconnect(fmt::format(
        "no response for {} s",
        static_cast<double>(
            (keep_alive_.interval * keep_alive_.attempts).count()) /
            1000));
  } else if (now - last_sent_ >= keep_alive_.interval) {
    send({{"type", "ping"}});
  }
}

void ControlConnection::on_disconnect(const std::string& why) {
  loop_.forget(fd_.get());
  fd_.reset();
  if (on_lost_) {
    const auto handler = std::exchange(on_lost_, nullptr);
    handler(why);
  }
}

// Sends the queued messages and waits until the peer has closed its end.
// Closing a socket with unread bytes resets the connection, and the peer may
// then lose the last messages.
void ControlConnection::finish(std::chrono::milliseconds patience) {
  if (!fd_) {
    return;
  }
  on_lost_ = nullptr;
  on_message_ = nullptr;
  write_some();
  shutdown(fd_.get(), SHUT_WR);
  const auto deadline = Clock::now() + patience;
  std::array<char, 4096> buffer;
  for (auto now = Clock::now(); now < deadline; now = Clock::now()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    pollfd polled{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, static_cast<int>(left.count()));
    const ssize_t size = recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) {
      break;
    }
  }
}

} // namespace weft::launcher
