#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "launcher/connection/address.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/handshake.h"

namespace weft::launcher {

/// What became of a call at the gate.
enum class ConnectResult {
  kAccepted,
  /// Nobody there, yet, or nobody who says anything.
  kUnreachable,
  /// Somebody is there who is no weftrun.
  kNotWeftrun,
  /// The gate hung up on our answer: it has another token.
  kRefused,
  kOtherJob,
};

/// Connects to the gate and proves itself. See Note [Rendezvous handshake].
class Connector {
 public:
  struct Outcome {
    ConnectResult result = ConnectResult::kUnreachable;
    /// Of the last error, where there is one.
    std::string why;
    base::UniqueFd fd;
    Bits256 session{};
  };
  using Done = std::function<void(Outcome)>;

  /// `done` is called once, from the loop or from tick().
  /// Lifetime: `loop` outlives this object.
  Connector(
      EventLoop& loop,
      const Address& address,
      ClientHello client_hello,
      const Bits256& key,
      Done done);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  /// Notices that the gate does not answer.
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
