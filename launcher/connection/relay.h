#pragma once

#include <array>
#include <string>

#include "base/unique_fd.h"
#include "launcher/connection/event_loop.h"

namespace weft::launcher {

/// Forwards bytes between two connected sockets in both directions, until both
/// ends have closed.
class Relay {
 public:
  /// Lifetime: `loop` must outlive this object.
  Relay(EventLoop& loop, base::UniqueFd one, base::UniqueFd other);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  bool is_open() const { return bool(ends_[0].fd); }

 private:
  struct End {
    base::UniqueFd fd;
    /// Data that was read here and must be written to the other end.
    std::string pending;
    bool at_end = false;
    bool told_other = false;
  };

  void handle();
  bool move(End& from, End& to);
  void watch(End& end, const End& other);
  void close();

  EventLoop& loop_;
  std::array<End, 2> ends_;
};

} // namespace weft::launcher
