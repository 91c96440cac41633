#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/unique_fd.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/key.h"

namespace weft::launcher {

/// How long silence may last.
struct KeepAlive {
  std::chrono::milliseconds interval;
  int attempts;
};

/// A control connection between two launchers that have proven themselves:
/// JSON messages, each with a length that is checked against a limit and a code
/// over the session's key, the direction and a running number.
class ControlConnection {
 public:
  using OnMessage = std::function<void(const nlohmann::json&)>;
  /// `why` as in "host b was lost: <why>". Called once.
  using OnLost = std::function<void(const std::string& why)>;

  /// Lifetime: `loop` outlives this object.
  ControlConnection(
      EventLoop& loop,
      base::UniqueFd fd,
      const Bits256& key,
      bool is_host0,
      KeepAlive keep_alive);
  ~ControlConnection();
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  void listen(OnMessage on_message, OnLost on_lost);
  void send(const nlohmann::json& message);
  /// Sends a sign of life where it is time; notices silence.
  void tick();
  bool is_open() const { return bool(fd_); }
  /// Has the other side read everything before the connection ends.
  void finish(std::chrono::milliseconds patience);
  std::string own_host() const;

 private:
  using Clock = std::chrono::steady_clock;

  void handle(uint32_t events);
  bool read_some();
  void take_frames();
  bool write_some();
  void on_disconnect(const std::string& why);
  Bits256 code(char direction, uint64_t number, std::string_view text) const;

  EventLoop& loop_;
  base::UniqueFd fd_;
  Bits256 key_;
  char own_direction_;
  char other_direction_;
  KeepAlive keep_alive_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  std::string incoming_;
  std::string outgoing_;
  Clock::time_point last_heard_ = Clock::now();
  Clock::time_point last_sent_ = Clock::now();
  OnMessage on_message_;
  OnLost on_lost_;
};

} // namespace weft::launcher
