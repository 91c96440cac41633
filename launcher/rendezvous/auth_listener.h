#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "launcher/connection/event_loop.h"
#include "launcher/connection/handshake.h"
#include "launcher/connection/relay.h"
#include "launcher/rendezvous/auth_failures.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Where the other hosts' launchers knock: lets in who proves to know the
/// token, and connects streams of the current start to the store. Strangers
/// get two seconds and a fixed number of bytes. See Note [Rendezvous
/// handshake].
class AuthListener {
 public:
  using OnControl = std::function<void(base::UniqueFd, const Bits256& session)>;

  /// Takes over a listening socket.
  /// Lifetime: `loop` outlives this object.
  AuthListener(
      EventLoop& loop,
      base::UniqueFd listener,
      const std::string& token,
      const Bits256& job,
      OnControl on_control,
      LogLine log_line);
  ~AuthListener();
  AuthListener(const AuthListener&) = delete;
  AuthListener& operator=(const AuthListener&) = delete;

  /// Streams are for this start from now on; those of earlier ones end.
  void begin_round(uint64_t round, const Bits256& random);
  /// The store listens, or will soon, at this port of the loopback address.
  void serve_store(int port) { store_port_ = port; }
  /// See AuthFailureLog.
  const std::string& refused_host() const {
    return auth_failures_.likely_host();
  }
  /// Ends what is late; to be called several times a second.
  void tick();

 private:
  using Clock = std::chrono::steady_clock;
  /// Somebody who has proven nothing yet.
  struct UnauthenticatedPeer {
    base::UniqueFd fd;
    Bits256 challenge{};
    std::string incoming;
    Clock::time_point deadline;
  };
  /// A stream that waits for the store.
  struct Waiting {
    base::UniqueFd fd;
    base::UniqueFd store;
    Clock::time_point next_try;
  };

  void accept_some();
  void send_challenge(base::UniqueFd fd);
  void on_readable(const std::list<UnauthenticatedPeer>::iterator& client);
  void authenticate(const std::list<UnauthenticatedPeer>::iterator& client);
  void reject(
      const std::list<UnauthenticatedPeer>::iterator& client,
      AuthFailure why);
  void connect_waiting();
  bool connect_store(Waiting& waiting);

  EventLoop& loop_;
  base::UniqueFd listener_;
  const std::string token_;
  const Bits256 control_key_;
  const Bits256 job_;
  OnControl on_control_;
  AuthFailureLog auth_failures_;
  uint64_t round_ = 0;
  Bits256 round_key_{};
  int store_port_ = 0;
  std::list<UnauthenticatedPeer> unauthenticated_peers_;
  std::list<Waiting> waiting_;
  std::list<Relay> streams_;
};

} // namespace weft::launcher
