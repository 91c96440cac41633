#include "tests/fuzz/rendezvous_input.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launcher/connection/address.h"
#include "launcher/rendezvous/auth_listener.h"
#include "launcher/rendezvous/control_connection.h"
#include "launcher/rendezvous/messages.h"
#include "launcher/rendezvous/rendezvous_client.h"
#include "launcher/rendezvous/rendezvous_server.h"

namespace weft::launcher {
namespace {

using nlohmann::json;

const std::string kToken(64, 't');
const std::string kOtherToken(64, 'o');

void require(bool is_true, const char* what) {
  if (!is_true) {
    throw std::logic_error(what);
  }
}

/// Errors of weftrun itself, which ends with one line, are none.
template <typename Body>
std::string run(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// A listener without a port, so that millions of connections leave none
/// waiting.
class LocalListener {
 public:
  LocalListener()
      : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    static int count = 0;
    address_.sun_family = AF_UNIX;
    std::snprintf(
        address_.sun_path + 1, 64, "weft-fuzz-%d-%d", int(getpid()), ++count);
    size_ = sizeof(sa_family_t) + 1 + std::strlen(address_.sun_path + 1);
    require(
        bind(fd_.get(), address(), size_) == 0 && listen(fd_.get(), 64) == 0,
        "listen");
  }
  base::UniqueFd take() { return std::move(fd_); }
  base::UniqueFd connect_to() const {
    base::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(connect(fd.get(), address(), size_) == 0, "connect");
    return fd;
  }

 private:
  const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }

  sockaddr_un address_{};
  socklen_t size_ = 0;
  base::UniqueFd fd_;
};

void send_all(int fd, std::string_view bytes) {
  (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::string receive(int fd, size_t size) {
  std::string bytes(size, '\0');
  require(
      recv(fd, bytes.data(), size, MSG_WAITALL) == ssize_t(size), "receive");
  return bytes;
}

Bits256 receive_challenge(int fd) {
  Bits256 nonce{};
  require(read_challenge(receive(fd, kChallengeSize), nonce), "challenge");
  return nonce;
}

void wait_for(int fd) {
  pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
  require(poll(&polled, 1, 10000) == 1, "wait");
}

ClientHello claim_of(Role role) {
  ClientHello client_hello;
  client_hello.role = role;
  client_hello.round = 1;
  client_hello.job = sha256("job");
  return client_hello;
}

/// The other end of a ControlConnection, which says what it likes.
class Peer {
 public:
  Peer(base::UniqueFd fd, const Bits256& key, char direction)
      : fd_(std::move(fd)), key_(key), direction_(direction) {}

  void log_line(std::string_view text) {
    const auto size = static_cast<uint32_t>(text.size());
    std::string frame(reinterpret_cast<const char*>(&size), sizeof(size));
    frame += text;
    std::string signed_text(1, direction_);
    signed_text.append(reinterpret_cast<const char*>(&sent_), sizeof(sent_));
    signed_text += text;
    frame += view(hmac_sha256(view(key_), signed_text));
    ++sent_;
    send_all(fd_.get(), frame);
  }

 private:
  base::UniqueFd fd_;
  Bits256 key_;
  char direction_;
  uint64_t sent_ = 0;
};

Options two_hosts(int node_rank, int port) {
  Options options;
  options.run_id = "job";
  options.max_restarts = 3;
  options.worker_count = 2;
  options.command = {"program"};
  options.hosts.node_count = 2;
  options.hosts.node_rank = node_rank;
  options.hosts.address = "127.0.0.1";
  options.hosts.port = port;
  return options;
}

void check_hosts(Rendezvous& hosts, int worker_count) {
  if (const auto place = hosts.take_rank_assignment()) {
    require(
        place->node_rank >= 0 && place->node_rank < place->node_count &&
            place->first_rank >= 0 &&
            place->first_rank <= place->world_size - worker_count,
        "ranks do not fit in the world");
  }
  if (const auto order = hosts.take_stop_request()) {
    require(order->signal > 0 && order->signal <= 64, "no signal");
  }
  if (const auto run_result = hosts.take_result()) {
    require(run_result->code >= 0 && run_result->code <= 255, "no exit code");
    require(
        run_result->code == 0 || run_result->restart_after.has_value() ||
            !run_result->line.empty(),
        "a failure without a line");
    require(
        run_result->restart_after.value_or(std::chrono::hours(0)) <=
            std::chrono::hours(24),
        "a restart that never comes");
  }
}

void say_lines(
    std::string_view input,
    Peer& peer,
    Rendezvous& hosts,
    const std::string& join) {
  while (!input.empty()) {
    const size_t end = std::min(input.find('\n'), input.size());
    const auto line = input.substr(0, end);
    peer.log_line(line == "join" ? join : line);
    hosts.dispatch();
    check_hosts(hosts, 2);
    input.remove_prefix(std::min(end + 1, input.size()));
  }
}

class GateTarget {
 public:
  GateTarget()
      : gate_(
            loop_,
            listener_.take(),
            kToken,
            sha256("job"),
            [this](base::UniqueFd, const Bits256&) { ++controls_; },
            base::Logger()) {
    gate_.begin_round(1, sha256("random"));
  }

  void connect_with(std::string_view input) {
    const base::UniqueFd fd = listener_.connect_to();
    loop_.dispatch();
    send_all(fd.get(), answer(input, receive_challenge(fd.get())));
    shutdown(fd.get(), SHUT_WR);
    for (int i = 0; i < 4; ++i) {
      loop_.dispatch();
    }
    char reply = 0;
    require(
        recv(fd.get(), &reply, 1, MSG_DONTWAIT) <= 0 && controls_ == 0,
        "the server admits an unauthenticated peer");
  }

 private:
  static std::string answer(std::string_view input, const Bits256& challenge) {
    const int way = input.empty() ? 0 : input[0] % 4;
    input = input.substr(std::min<size_t>(1, input.size()));
    if (way == 0) {
      return std::string(input);
    }
    ClientHello client_hello =
        claim_of(way == 1 ? Role::kStream : Role::kControl);
    if (way == 1) { // the token alone does not open the store
      return make_answer(client_hello, challenge, view(control_key(kToken)));
    }
    if (way == 2) { // another token
      input.copy(client_hello.nonce.data(), client_hello.nonce.size());
      return make_answer(
          client_hello, challenge, view(control_key(kOtherToken)));
    }
    // A real answer, overheard: to another challenge, and changed on the way.
    auto old =
        make_answer(client_hello, sha256(input), view(control_key(kToken)));
    for (size_t i = 0; i < std::min(old.size(), input.size()); ++i) {
      old[i] = static_cast<char>(old[i] ^ input[i]);
    }
    return old;
  }

  EventLoop loop_{std::chrono::milliseconds(1000)};
  LocalListener listener_;
  int controls_ = 0;
  AuthListener gate_;
};

std::string good_join(const Options& options) {
  return json({{"type", "join"},
               {"host", "guest"},
               {"node", 1},
               {"nodes", 2},
               {"workers", 2},
               {"version", WEFT_VERSION},
               {"command", command_digest(options)}})
      .dump();
}

/// As host 0, lets a spoke in.
Peer let_in(RendezvousClient& spoke, int listener) {
  wait_for(listener);
  base::UniqueFd fd(accept(listener, nullptr, nullptr));
  require(bool(fd), "accept");
  // Closed by a reset, which leaves no port waiting.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  const Bits256 challenge = sha256("challenge");
  send_all(fd.get(), make_challenge(challenge));
  for (int i = 0; i < 2; ++i) { // that it is connected, and what it is told
    wait_for(spoke.fd());
    spoke.dispatch();
  }
  wait_for(fd.get());
  const std::string answer = receive(fd.get(), kAnswerSize);
  ClientHello client_hello;
  require(read_answer(answer, client_hello), "answer");
  const Bits256 key = control_key(kToken);
  send_all(
      fd.get(),
      make_reply(AuthStatus::kAccepted, answer, challenge, view(key)));
  wait_for(spoke.fd());
  spoke.dispatch();
  return {std::move(fd), session_key(client_hello, challenge, view(key)), 'h'};
}

} // namespace

std::string knock_at_gate(std::string_view input) {
  static GateTarget target;
  return run([&] { target.connect_with(input); });
}

std::string interfere(std::string_view input) {
  static EventLoop loop{std::chrono::milliseconds(1000)};
  return run([&] {
    int fds[2];
    require(
        socketpair(
            AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0,
        "socketpair");
    const base::UniqueFd other(fds[1]);
    ControlConnection link(
        loop,
        base::UniqueFd(fds[0]),
        sha256("session"),
        /*is_host0=*/true,
        {.interval = std::chrono::seconds(5), .attempts = 3});
    bool is_believed = false;
    link.listen(
        [&](const json&) { is_believed = true; }, [](const std::string&) {});
    send_all(other.get(), input);
    for (int i = 0; i < 4; ++i) {
      loop.dispatch();
    }
    require(!is_believed, "a message is believed");
  });
}

std::string tell_host0(std::string_view input) {
  return run([&] {
    const Options options = two_hosts(0, 0);
    LocalListener listener;
    RendezvousServer hub(
        options, "first", listener.take(), kToken, base::Logger());
    hub.ready();
    base::UniqueFd fd = listener.connect_to();
    hub.dispatch();
    const Bits256 challenge = receive_challenge(fd.get());
    const ClientHello client_hello = claim_of(Role::kControl);
    const Bits256 key = control_key(kToken);
    send_all(fd.get(), make_answer(client_hello, challenge, view(key)));
    hub.dispatch();
    receive(fd.get(), kReplySize);
    Peer peer(
        std::move(fd), session_key(client_hello, challenge, view(key)), 'n');
    say_lines(input, peer, hub, good_join(options));
    hub.end(HostResult());
    check_hosts(hub, 2);
  });
}

std::string tell_other_host(std::string_view input) {
  static const base::UniqueFd listener = listen_at(loopback(0));
  return run([&] {
    const Options options = two_hosts(1, own_address(listener.get()).port());
    RendezvousClient spoke(options, "second", kToken, base::Logger());
    spoke.ready();
    Peer peer = let_in(spoke, listener.get());
    say_lines(input, peer, spoke, "{}");
  });
}

} // namespace weft::launcher
