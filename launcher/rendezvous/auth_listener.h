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
/// get two seconds and a fixed number of bytes. See Note [The gate].
class Gate {
 public:
  using OnControl = std::function<void(UniqueFd, const Bits256& session)>;

  /// Takes over a listening socket.
  /// Lifetime: `loop` outlives this object.
  Gate(
      EventLoop& loop,
      UniqueFd listener,
      const std::string& token,
      const Bits256& job,
      OnControl on_control,
      Say say);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Streams are for this start from now on; those of earlier ones end.
  void begin_epoch(uint64_t epoch, const Bits256& random);
  /// The store listens, or will soon, at this port of the loopback address.
  void serve_store(int port) { store_port_ = port; }
  /// See Refusals.
  const std::string& refused_host() const { return refusals_.likely_host(); }
  /// Ends what is late; to be called several times a second.
  void tick();

 private:
  using Clock = std::chrono::steady_clock;
  /// Somebody who has proven nothing yet.
  struct Stranger {
    UniqueFd fd;
    Bits256 challenge{};
    std::string incoming;
    Clock::time_point deadline;
  };
  /// A stream that waits for the store.
  struct Waiting {
    UniqueFd fd;
    UniqueFd store;
    Clock::time_point next_try;
  };

  void accept_some();
  void greet(UniqueFd fd);
  void hear(const std::list<Stranger>::iterator& stranger);
  void judge(const std::list<Stranger>::iterator& stranger);
  void turn_away(const std::list<Stranger>::iterator& stranger, Refusal why);
  void connect_waiting();
  bool connect_store(Waiting& waiting);

  EventLoop& loop_;
  UniqueFd listener_;
  const std::string token_;
  const Bits256 control_key_;
  const Bits256 job_;
  OnControl on_control_;
  Refusals refusals_;
  uint64_t epoch_ = 0;
  Bits256 epoch_key_{};
  int store_port_ = 0;
  std::list<Stranger> strangers_;
  std::list<Waiting> waiting_;
  std::list<Splice> streams_;
};

} // namespace weft::launcher
