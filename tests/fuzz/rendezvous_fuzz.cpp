#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launcher/rendezvous/gate.h"
#include "launcher/rendezvous/handshake.h"
#include "launcher/rendezvous/link.h"

// What somebody without the token sends to host 0: nothing of it may open a
// control connection, reach the store, or be taken for a message.
namespace weft::launcher {
namespace {

const std::string kToken(64, 't');
const std::string kOtherToken(64, 'o');

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "unauthenticated: %s\n", what);
  std::abort();
}

/// A listener without a port, so that millions of connections leave none
/// waiting.
UniqueFd listen_locally(sockaddr_un& address, socklen_t& size) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(
      address.sun_path + 1, 64, "weft-fuzz-%d", static_cast<int>(getpid()));
  size = sizeof(sa_family_t) + 1 + std::strlen(address.sun_path + 1);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), 64) != 0) {
    std::abort();
  }
  return fd;
}

class Target {
 public:
  Target()
      : gate_(
            loop_,
            listen_locally(address_, size_),
            kToken,
            sha256("job"),
            [this](UniqueFd, const Bits256&) { ++controls_; },
            [](std::string_view) {}) {
    gate_.begin_epoch(1, random_);
  }

  /// Sends the gate what the first byte says to make of the others.
  void knock(std::string_view input) {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address_), size_) != 0) {
      std::abort();
    }
    loop_.dispatch();
    std::string challenge(kChallengeSize, '\0');
    Bits256 nonce{};
    if (recv(fd.get(), challenge.data(), challenge.size(), MSG_WAITALL) !=
            static_cast<ssize_t>(challenge.size()) ||
        !read_challenge(challenge, nonce)) {
      std::abort();
    }
    const auto message = answer(input, nonce);
    send(fd.get(), message.data(), message.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    for (int i = 0; i < 4; ++i) {
      loop_.dispatch();
    }
    char reply = 0;
    if (recv(fd.get(), &reply, 1, MSG_DONTWAIT) > 0 || controls_ > 0) {
      fail("the gate lets somebody in");
    }
  }

 private:
  static std::string answer(std::string_view input, const Bits256& challenge) {
    const int way = input.empty() ? 0 : input[0] % 4;
    input = input.substr(std::min<size_t>(1, input.size()));
    if (way == 0) {
      return std::string(input);
    }
    Claim claim;
    claim.role = way == 1 ? Role::kStream : Role::kControl;
    claim.epoch = 1;
    claim.job = sha256("job");
    if (way == 1) { // the token alone does not open the store
      return make_answer(claim, challenge, view(control_key(kToken)));
    }
    if (way == 2) { // another token
      std::memcpy(
          claim.nonce.data(), input.data(), std::min<size_t>(32, input.size()));
      return make_answer(claim, challenge, view(control_key(kOtherToken)));
    }
    // A real answer, overheard: to another challenge, and changed on the way.
    auto old = make_answer(claim, sha256(input), view(control_key(kToken)));
    for (size_t i = 0; i < std::min(old.size(), input.size()); ++i) {
      old[i] = static_cast<char>(old[i] ^ input[i]);
    }
    return old;
  }

  EventLoop loop_{std::chrono::milliseconds(1000)};
  sockaddr_un address_{};
  socklen_t size_ = 0;
  const Bits256 random_ = sha256("random");
  int controls_ = 0;
  Gate gate_;
};

/// Bytes in a connection that was let in, by somebody in between who does not
/// know its key.
void interfere(std::string_view input) {
  static EventLoop loop{std::chrono::milliseconds(1000)};
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) !=
      0) {
    std::abort();
  }
  const UniqueFd other(fds[1]);
  Link link(
      loop,
      UniqueFd(fds[0]),
      sha256("session"),
      /*is_host0=*/true,
      {.interval = std::chrono::seconds(5), .attempts = 3});
  link.listen(
      [](const nlohmann::json&) { fail("a message is believed"); },
      [](const std::string&) {});
  send(other.get(), input.data(), input.size(), MSG_NOSIGNAL);
  for (int i = 0; i < 4; ++i) {
    loop.dispatch();
  }
}

} // namespace
} // namespace weft::launcher

// libFuzzer calls this with what it made up.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static weft::launcher::Target target;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  target.knock(input);
  weft::launcher::interfere(input);
  return 0;
}
