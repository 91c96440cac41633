// How launchers find each other, and what they say if they do not.
#include <array>
#include <atomic>
#include <thread>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/connection/address.h"
#include "tests/launcher/rendezvous/several_hosts.h"

namespace weft::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Greets everybody as a mail server does.
class MailServer {
 public:
  int port() const { return own_address(listener_.get()).port(); }
  ~MailServer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void serve() const {
    const std::string greeting =
        "220 mail.example.com ESMTP, and so on at "
        "some length\r\n";
    while (!stop_) {
      pollfd polled{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      poll(&polled, 1, 20);
      if (const base::UniqueFd caller = accept_one(listener_.get())) {
        send(caller.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      }
    }
  }

  base::UniqueFd listener_ = listen_at(loopback(0));
  std::atomic<bool> stop_ = false;
  std::thread thread_{[this] { serve(); }};
};

TEST_F(SeveralHosts, AListenerThatIsNoWeftrunIsToldApart) {
  const MailServer server;
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const auto other = host(1, "echo never", {"--rdzv-endpoint=" + endpoint});
  EXPECT_EQ(other->wait(), 2);
  EXPECT_THAT(
      other->last_error_line(),
      HasSubstr("listening at " + endpoint + " is not a matching weftrun"));
  const auto first = host(0, "echo never", {"--rdzv-endpoint=" + endpoint});
  EXPECT_EQ(first->wait(), 2);
  EXPECT_THAT(first->last_error_line(), HasSubstr("in use by process"));
  EXPECT_EQ(other->output() + first->output(), "");
}

// A weftrun that is stopped for a while may be behind it.
TEST_F(SeveralHosts, AListenerThatSaysNothingIsWaitedFor) {
  const auto silent = listen_at(loopback(0));
  const std::string endpoint =
      "127.0.0.1:" + std::to_string(own_address(silent.get()).port());
  const auto other = host(
      1,
      "echo never",
      {"--rdzv-endpoint=" + endpoint, "--rdzv-conf=join_timeout=12"});
  EXPECT_EQ(other->wait(), 150);
  EXPECT_THAT(
      other->last_error_line(),
      HasSubstr(
          "host 0 did not answer at " + endpoint +
          " within 12 s (--rdzv-conf join_timeout): it says nothing."));
}

TEST_F(SeveralHosts, AnUnknownNameOfHost0IsSaid) {
  const std::string endpoint = "--rdzv-endpoint=no-such-host.invalid:29400";
  const auto other = host(1, "echo never", {endpoint});
  const auto first = host(0, "echo never", {endpoint});
  for (const auto& launcher : {first.get(), other.get()}) {
    EXPECT_EQ(launcher->wait(), 2);
    EXPECT_THAT(
        launcher->last_error_line(),
        HasSubstr(
            "name 'no-such-host.invalid' cannot be resolved on this host"));
    EXPECT_EQ(launcher->output(), "");
  }
}

TEST_F(SeveralHosts, WhoStaysAloneGivesUpInTime) {
  const std::vector<std::string> flags{"--rdzv-conf=join_timeout=0.4"};
  for (const int node : {0, 1}) {
    const auto lonely = host(node, "echo never", flags);
    EXPECT_EQ(lonely->wait(), 150);
    EXPECT_THAT(lonely->last_error_line(), StartsWith("ERROR 150 rank=0 "));
    EXPECT_THAT(
        lonely->last_error_line(),
        HasSubstr(
            node == 0 ? "1 of 2 hosts arrived within 0.4 s"
                      : "host 0 did not answer at 127.0.0.1:"));
    EXPECT_EQ(lonely->output(), "");
  }
}

TEST_F(SeveralHosts, ATokenMayComeByADescriptorThatWorkersDoNotGet) {
  const auto with_token_fd = [&](int node) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    const base::UniqueFd read_end(ends[0]);
    base::UniqueFd write_end(ends[1]);
    const std::string secret = std::string(64, 'a') + "\n";
    EXPECT_EQ(
        write(write_end.get(), secret.data(), secret.size()),
        static_cast<ssize_t>(secret.size()));
    write_end.reset();
    const std::string fd = std::to_string(read_end.get());
    token_flag_ = "--token-fd=" + fd;
    return host(node, "[ ! -e /proc/self/fd/" + fd + " ] && echo none");
  };
  const auto second = with_token_fd(1);
  const auto first = with_token_fd(0);
  for (const auto& launcher : {first.get(), second.get()}) {
    EXPECT_EQ(launcher->wait(), 0) << launcher->error();
    EXPECT_EQ(launcher->output(), "none\n");
  }
}

TEST_F(SeveralHosts, MeetAtLocalAddr) {
  const std::string port = ":" + std::to_string(port_);
  const std::string script = "echo $WEFT_BIND_ADDR";
  const auto first = host(
      0,
      script,
      {"--rdzv-endpoint=localhost" + port, "--local-addr=127.0.0.2"});
  const auto second = host(
      1,
      script,
      {"--rdzv-endpoint=127.0.0.2" + port, "--local-addr=127.0.0.3"});
  EXPECT_EQ(first->wait(), 0) << first->error();
  EXPECT_EQ(second->wait(), 0) << second->error();
  EXPECT_EQ(first->output(), "127.0.0.2\n");
  EXPECT_EQ(second->output(), "127.0.0.3\n");
}

} // namespace
} // namespace weft::launcher
