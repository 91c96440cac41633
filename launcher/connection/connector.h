#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "launcher/connection/address.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/handshake.h"

namespace weft::launcher {

/// The result of a connection attempt to host 0's AuthListener.
enum class ConnectResult {
  kAccepted,
  /// Nothing listens at the address yet, or the peer does not respond.
  kUnreachable,
  /// The peer is not a weftrun.
  kNotWeftrun,
  /// The tokens differ: the server closed the connection after this host's
  /// response, or did not prove that it knows the token.
  kRefused,
  kOtherJob,
};

/// Connects to host 0's AuthListener and authenticates both sides. See Note
/// [Rendezvous handshake].
class Connector {
 public:
  struct Outcome {
    ConnectResult result = ConnectResult::kUnreachable;
    /// The reason for the result. Empty if there is none.
    std::string why;
    base::UniqueFd fd;
    Bits256 session{};
  };
  using Done = std::function<void(Outcome)>;

  /// `done` is called once, from the loop or from tick().
  /// Lifetime: `loop` must outlive this object.
  Connector(
      EventLoop& loop,
      const Address& address,
      ClientHello client_hello,
      const Bits256& key,
      Done done);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  /// Checks the timeouts. Must be called regularly.
  void tick();
  bool is_over() const { return !done_; }

 private:
  enum class State { kConnecting, kChallenge, kReply };

  void handle();
  bool receive(size_t size);
  void answer();
  void read_verdict();
  void finish(ConnectResult result, const std::string& why = "");

  EventLoop& loop_;
  ClientHello claim_;
  Bits256 key_;
  Done done_;
  base::UniqueFd fd_;
  State state_ = State::kConnecting;
  Bits256 challenge_{};
  std::string answer_;
  std::string incoming_;
  int error_ = 0;
  std::chrono::steady_clock::time_point deadline_;
};

} // namespace weft::launcher
