#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/unique_fd.h"

namespace weft::launcher {

/// Calls handlers when descriptors are ready, and a tick handler at a fixed
/// interval. fd() is itself a descriptor, which is readable while a handler is
/// due.
class EventLoop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  explicit EventLoop(std::chrono::milliseconds tick);

  int fd() const { return epoll_.get(); }
  /// Watches `fd` for EPOLL* events. A second call replaces the events and the
  /// handler. A handler may forget any descriptor, including its own.
  void watch(int fd, uint32_t events, Handler handler);
  void change(int fd, uint32_t events);
  /// Stops watching `fd`. Must be called before the descriptor is closed.
  void forget(int fd);
  /// Sets the handler that is called at each tick.
  void on_tick(std::function<void()> handler) { tick_ = std::move(handler); }
  /// Calls the handlers that are due, without waiting.
  void dispatch();

 private:
  base::UniqueFd epoll_;
  base::UniqueFd timer_;
  std::map<int, std::shared_ptr<Handler>> handlers_;
  std::function<void()> tick_;
};

} // namespace weft::launcher
