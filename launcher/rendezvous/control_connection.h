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

/// The keep-alive settings. A peer that is silent for `attempts` intervals is
/// lost.
struct KeepAlive {
  std::chrono::milliseconds interval;
  int attempts;
};

/// A control connection between two authenticated launchers. Each JSON message
/// has a length, which is checked against a limit, and a MAC. The MAC is
/// computed with the session's key and covers the direction, a sequence number
/// and the text.
class ControlConnection {
 public:
  using OnMessage = std::function<void(const nlohmann::json&)>;
  /// Called once when the connection is lost. `why` fits into "host b was lost:
  /// <why>".
  using OnLost = std::function<void(const std::string& why)>;

  /// Lifetime: `loop` must outlive this object.
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
  /// Sends a keep-alive message if one is due, and detects a silent peer.
  void tick();
  bool is_open() const { return bool(fd_); }
  /// Waits up to `patience` for the peer to read everything and close the
  /// connection.
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
