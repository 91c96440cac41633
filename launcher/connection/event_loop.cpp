#include "launcher/connection/event_loop.h"

#include <array>
#include <utility>

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

void control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll, operation, fd, &event) != 0) {
    throw_errno("epoll_ctl");
  }
}

} // namespace

EventLoop::EventLoop(std::chrono::milliseconds tick)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!epoll_ || !timer_) {
    throw_errno("epoll");
  }
  const itimerspec period{
      {0, tick.count() * 1000000}, {0, tick.count() * 1000000}};
  timerfd_settime(timer_.get(), 0, &period, nullptr);
  watch(timer_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t count = 0;
    if (read(timer_.get(), &count, sizeof(count)) > 0 && tick_) {
      tick_();
    }
  });
}

void EventLoop::watch(int fd, uint32_t events, Handler handler) {
  const bool known = handlers_.contains(fd);
  control(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, events);
  handlers_[fd] = std::make_shared<Handler>(std::move(handler));
}

void EventLoop::change(int fd, uint32_t events) {
  control(epoll_.get(), EPOLL_CTL_MOD, fd, events);
}

void EventLoop::forget(int fd) {
  if (handlers_.erase(fd) > 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void EventLoop::dispatch() {
  std::array<epoll_event, 64> ready;
  const int count =
      epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    // An earlier handler of this loop may have removed this descriptor, or
    // closed it and opened another one with the same number. Then the call is
    // redundant, and the handler finds nothing to read.
    const auto found = handlers_.find(ready[i].data.fd);
    if (found != handlers_.end()) {
      // The copy keeps the handler alive if it removes itself.
      const auto handler = found->second;
      (*handler)(ready[i].events);
    }
  }
}

} // namespace weft::launcher
