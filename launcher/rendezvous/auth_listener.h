#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "base/log.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/handshake.h"
#include "launcher/connection/relay.h"
#include "launcher/rendezvous/auth_failures.h"
#include "launcher/rendezvous/rendezvous.h"

namespace weft::launcher {

/// Accepts launchers of other hosts and authenticates them with the shared
/// token. Connects streams of the current start to the store. An
/// unauthenticated peer gets 2 s and a fixed number of bytes. See Note
/// [Rendezvous handshake].
class AuthListener {
 public:
  using OnControl = std::function<void(base::UniqueFd, const Bits256& session)>;

  /// Takes ownership of a listening socket.
  /// Lifetime: `loop` must outlive this object.
  AuthListener(
      EventLoop& loop,
      base::UniqueFd listener,
      const std::string& token,
      const Bits256& job,
      OnControl on_control,
      base::Logger log);
  ~AuthListener();
  AuthListener(const AuthListener&) = delete;
  AuthListener& operator=(const AuthListener&) = delete;

  /// Accepts only streams of round `round`, which is one start of the workers,
  /// and closes the streams of earlier rounds.
  void begin_round(uint64_t round, const Bits256& random);
  /// Sets the loopback port at which the store listens, or will listen soon.
  void serve_store(int port) { store_port_ = port; }
  /// Returns AuthFailureLog::likely_host().
  const std::string& refused_host() const {
    return auth_failures_.likely_host();
  }
  /// Rejects peers that exceeded their time. Must be called several times a
  /// second.
  void tick();

 private:
  using Clock = std::chrono::steady_clock;
  /// A peer that is not authenticated yet.
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
