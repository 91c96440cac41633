#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/unique_fd.h"

namespace weft::launcher {

/// Calls back when descriptors are ready, and at a steady tick. Itself a
/// descriptor, readable when it has something to call back for.
class EventLoop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  explicit EventLoop(std::chrono::milliseconds tick);

  int fd() const { return epoll_.get(); }
  /// Watches `fd` for EPOLL* events; again changes them. Its handler may
  /// forget any descriptor, its own too.
  void watch(int fd, uint32_t events, Handler handler);
  void change(int fd, uint32_t events);
  /// Before the descriptor is closed.
  void forget(int fd);
  /// Called at each tick.
  void on_tick(std::function<void()> handler) { tick_ = std::move(handler); }
  /// Calls back for what is ready now, without waiting.
  void dispatch();

 private:
  base::UniqueFd epoll_;
  base::UniqueFd timer_;
  std::map<int, std::shared_ptr<Handler>> handlers_;
  std::function<void()> tick_;
};

} // namespace weft::launcher
