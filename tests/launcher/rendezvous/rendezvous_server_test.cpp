// Host 0, and guests who say of themselves what they like.
#include "launcher/rendezvous/rendezvous_server.h"

#include <array>
#include <functional>
#include <memory>

#include <poll.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/connection/connector.h"
#include "launcher/rendezvous/messages.h"

namespace weft::launcher {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

class RendezvousServerTest : public ::testing::Test {
 protected:
  /// A launcher that has come in and says `join`, with changes.
  class Guest {
   public:
    Guest(RendezvousServerTest& test, const json& changes)
        : join_(
              {{"type", "join"},
               {"host", "guest"},
               {"node", 1},
               {"nodes", test.options_.hosts.node_count},
               {"workers", 2},
               {"version", WEFT_VERSION},
               {"command", command_digest(test.options_)}}),
          connector_(
              test.loop_,
              test.gate_,
              claim_of(test.options_),
              control_key(test.token_),
              [this, &test](Connector::Outcome outcome) {
                enter(test.loop_, std::move(outcome));
              }) {
      join_.update(changes);
    }
    const json& heard() const { return heard_; }
    /// Host 0 reads what it says before what later ones say.
    bool has_joined() const { return link_ != nullptr; }

   private:
    static ClientHello claim_of(const Options& options) {
      ClientHello client_hello;
      client_hello.job = sha256(options.run_id);
      return client_hello;
    }
    void enter(EventLoop& loop, Connector::Outcome outcome) {
      ASSERT_EQ(outcome.result, ConnectResult::kAccepted);
      link_ = std::make_unique<ControlConnection>(
          loop,
          std::move(outcome.fd),
          outcome.session,
          /*is_host0=*/false,
          KeepAlive{milliseconds(5000), 3});
      link_->listen(
          [this](const json& message) { heard_ = message; },
          [](const std::string&) {});
      link_->send(join_);
    }

    json join_;
    json heard_;
    std::unique_ptr<ControlConnection> link_;
    Connector connector_;
  };

  RendezvousServerTest() { hub_.ready(); }

  static Options three_hosts() {
    Options options;
    options.run_id = "job";
    options.hosts.node_count = 3;
    options.command = {"program"};
    return options;
  }

  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 1000; ++i) {
      if (done()) {
        return true;
      }
      std::array<pollfd, 2> polled{
          pollfd{.fd = hub_.fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = loop_.fd(), .events = POLLIN, .revents = 0}};
      poll(polled.data(), polled.size(), 10);
      hub_.dispatch();
      loop_.dispatch();
    }
    return false;
  }
  bool answered(const Guest& guest) {
    return until([&] { return !guest.heard().is_null(); });
  }

  const Options options_ = three_hosts();
  const std::string token_ = std::string(64, 'a');
  base::UniqueFd listener_ = listen_at(loopback(0));
  const Address gate_ = own_address(listener_.get());
  EventLoop loop_{milliseconds(10)};
  RendezvousServer hub_{
      options_,
      "first",
      std::move(listener_),
      token_,
      base::Logger()};
};

TEST_F(RendezvousServerTest, RejectsMixedVersions) {
  const Guest guest(*this, {{"version", "0.0.1"}});
  ASSERT_TRUE(answered(guest));
  const RunResult told = read_result(guest.heard());
  EXPECT_EQ(told.code, 5);
  EXPECT_THAT(
      told.line, HasSubstr("weftrun has version 0.0.1 on host guest and "));
  EXPECT_THAT(told.line, HasSubstr("Install the same version on all hosts."));
  const auto own = hub_.take_result();
  ASSERT_TRUE(own);
  EXPECT_EQ(own->code, 5);
  EXPECT_EQ(own->line, told.line);
}

TEST_F(RendezvousServerTest, RejectsADuplicateNodeRank) {
  const Guest first(*this, {{"node", 1}});
  ASSERT_TRUE(until([&] { return first.has_joined(); }));
  const Guest twin(*this, {{"node", 1}});
  ASSERT_TRUE(answered(twin));
  EXPECT_EQ(read_result(twin.heard()).code, 2);
  EXPECT_THAT(
      read_result(twin.heard()).line,
      HasSubstr("--node-rank 1 is already used by another host. Give each host "
                "its own rank from 0 to 2."));
  EXPECT_FALSE(hub_.take_result());
  const Guest last(*this, {{"node", 2}, {"workers", 4}});
  std::optional<RankAssignment> place;
  ASSERT_TRUE(
      until([&] { return (place = hub_.take_rank_assignment()).has_value(); }));
  EXPECT_EQ(place->world_size, 1 + 2 + 4);
  ASSERT_TRUE(answered(first) && answered(last));
  EXPECT_EQ(int_of(first.heard(), "first", -1), 1);
  EXPECT_EQ(int_of(last.heard(), "first", -1), 3);
}

TEST_F(RendezvousServerTest, NamesADifferentHostCount) {
  const Guest guest(*this, {{"nodes", 4}});
  ASSERT_TRUE(answered(guest));
  EXPECT_EQ(
      read_result(guest.heard()).line,
      "ERROR 2 rank=0 op=launch --nnodes is 4 on host guest and 3 on host "
      "first. Use the same value on all hosts.");
}

} // namespace
} // namespace weft::launcher
