#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "launcher/connection/address.h"
#include "launcher/connection/connector.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/relay.h"

namespace weft::launcher {

/// The rendezvous address of the workers on a host other than host 0: a
/// loopback port that forwards connections through host 0's AuthListener to
/// rank 0's store. Serves one start of the workers.
class Forwarder {
 public:
  /// Lifetime: `loop` must outlive this object.
  /// Throws: LaunchError if no port can be opened.
  Forwarder(
      EventLoop& loop,
      const Address& server,
      const ClientHello& client_hello,
      const Bits256& round_key);
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  int port() const { return own_address(listener_.get()).port(); }
  void tick();

 private:
  struct Call {
    base::UniqueFd local;
    std::unique_ptr<Connector> connector;
    int failures = 0;
  };

  void accept_some();
  void connect_to_server(Call& call);

  EventLoop& loop_;
  const Address server_address_;
  const ClientHello claim_;
  const Bits256 key_;
  base::UniqueFd listener_;
  std::list<Call> calls_;
  std::list<Relay> streams_;
};

} // namespace weft::launcher
