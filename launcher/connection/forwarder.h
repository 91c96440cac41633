#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "launcher/connection/address.h"
#include "launcher/connection/connector.h"
#include "launcher/connection/event_loop.h"
#include "launcher/connection/relay.h"

namespace weft::launcher {

/// What the workers of another host than 0 meet at: a loopback port whose
/// connections go on, through the gate, to rank 0's store. For one start.
class Forwarder {
 public:
  /// Lifetime: `loop` outlives this object.
  /// Throws: LaunchError if there is no port.
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
