#include "launcher/connection/relay.h"

#include <cerrno>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace weft::launcher {
namespace {

constexpr size_t kChunk = size_t{64} * 1024;

bool is_transient(int error) {
  return error == EAGAIN || error == EINTR;
}

} // namespace

Relay::Relay(EventLoop& loop, base::UniqueFd one, base::UniqueFd other)
    : loop_(loop) {
  ends_[0].fd = std::move(one);
  ends_[1].fd = std::move(other);
  for (const auto& end : ends_) {
    loop_.watch(end.fd.get(), EPOLLIN, [this](uint32_t) { handle(); });
  }
}

Relay::~Relay() {
  close();
}

void Relay::close() {
  for (auto& end : ends_) {
    if (end.fd) {
      loop_.forget(end.fd.get());
      end.fd.reset();
    }
  }
}

void Relay::handle() {
  auto& [one, other] = ends_;
  if (!is_open()) {
    return;
  }
  if (!move(one, other) || !move(other, one) ||
      (one.told_other && other.told_other)) {
    close();
    return;
  }
  watch(one, other);
  watch(other, one);
}

/// Moves bytes in one direction. Returns false if the pair is broken.
bool Relay::move(End& from, End& to) {
  if (from.pending.empty() && !from.at_end) {
    from.pending.resize(kChunk);
    const ssize_t size =
        recv(from.fd.get(), from.pending.data(), from.pending.size(), 0);
    if (size < 0 && !is_transient(errno)) {
      return false;
    }
    from.at_end = size == 0;
    from.pending.resize(size > 0 ? static_cast<size_t>(size) : 0);
  }
  if (!from.pending.empty()) {
    const ssize_t size = send(
        to.fd.get(), from.pending.data(), from.pending.size(), MSG_NOSIGNAL);
    if (size < 0 && !is_transient(errno)) {
      return false;
    }
    from.pending.erase(0, size > 0 ? static_cast<size_t>(size) : 0);
  }
  if (from.at_end && from.pending.empty() && !from.told_other) {
    shutdown(to.fd.get(), SHUT_WR);
    from.told_other = true;
  }
  return true;
}

void Relay::watch(End& end, const End& other) {
  const bool reads = end.pending.empty() && !end.at_end;
  const bool writes = !other.pending.empty();
  loop_.change(
      end.fd.get(),
      (reads ? uint32_t{EPOLLIN} : 0) | (writes ? uint32_t{EPOLLOUT} : 0));
}

} // namespace weft::launcher
