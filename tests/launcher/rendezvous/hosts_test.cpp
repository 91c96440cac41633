// Launchers of several hosts, all on this one.
#include <signal.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/rendezvous/several_hosts.h"

namespace weft::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Flags = std::vector<std::string>;

TEST_F(SeveralHosts, RankTheirWorkersInOrder) {
  const std::string script =
      "echo $RANK $LOCAL_RANK $GROUP_RANK $GROUP_WORLD_SIZE $WORLD_SIZE "
      "$LOCAL_WORLD_SIZE $MASTER_ADDR $WEFT_BIND_ADDR";
  const auto second = host(1, script, {}, 2);
  const auto first = host(0, script);
  EXPECT_EQ(first->wait(), 0) << first->error();
  EXPECT_EQ(second->wait(), 0) << second->error();
  EXPECT_EQ(first->output(), "0 0 0 2 3 1 127.0.0.1 127.0.0.1\n");
  EXPECT_THAT(
      lines_of(second->output()),
      UnorderedElementsAre(
          "1 0 1 2 3 2 127.0.0.1 127.0.0.1",
          "2 1 1 2 3 2 127.0.0.1 127.0.0.1"));
}

TEST_F(SeveralHosts, MayComeInAnyOrderUnderC10d) {
  const Flags flags{"--rdzv-backend=c10d"};
  const std::string script = "echo $RANK";
  const auto one = host(0, script, flags);
  const auto other = host(0, script, flags);
  EXPECT_EQ(one->wait(), 0) << one->error();
  EXPECT_EQ(other->wait(), 0) << other->error();
  EXPECT_THAT(
      (Flags{one->output(), other->output()}),
      UnorderedElementsAre("0\n", "1\n"));
}

TEST_F(SeveralHosts, EndAlikeWithTheSameLastLine) {
  const std::string script =
      "if [ $RANK = 1 ]; then kill -ABRT $$; fi; exec sleep 100";
  const auto second = host(1, script);
  const auto first = host(0, script);
  EXPECT_EQ(first->wait(), 134);
  EXPECT_EQ(second->wait(), 134);
  EXPECT_THAT(first->last_error_line(), StartsWith("ERROR 134 rank=1 "));
  EXPECT_THAT(first->last_error_line(), HasSubstr("node rank 1)"));
  EXPECT_EQ(first->last_error_line(), second->last_error_line());
}

TEST_F(SeveralHosts, StartAgainTogether) {
  const std::string script =
      "echo $RANK:$TORCHELASTIC_RESTART_COUNT; "
      "[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || kill -9 $$";
  const auto second = host(1, script, {"--max-restarts=1"});
  const auto first = host(0, script, {"--max-restarts=1"});
  EXPECT_EQ(first->wait(), 0) << first->error();
  EXPECT_EQ(second->wait(), 0) << second->error();
  EXPECT_THAT(first->output(), HasSubstr("0:1"));
  EXPECT_THAT(second->output(), HasSubstr("1:1"));
}

TEST_F(SeveralHosts, AStopOfOneStopsAll) {
  const std::string script = "echo ready; exec sleep 100";
  const auto second = host(1, script);
  const auto first = host(0, script);
  first->wait_for("ready");
  second->wait_for("ready");
  second->send(SIGTERM);
  EXPECT_EQ(first->wait(), 143);
  EXPECT_EQ(second->wait(), 143);
}

TEST_F(SeveralHosts, ALostHostIsNamed) {
  const std::string script = "echo ready; exec sleep 100";
  for (const int signal : {SIGKILL, SIGSTOP}) {
    auto second = host(1, script);
    const auto first = host(0, script);
    first->wait_for("ready");
    second->wait_for("ready");
    second->send(signal);
    EXPECT_EQ(first->wait(), 150);
    EXPECT_THAT(
        first->last_error_line(), StartsWith("ERROR 150 rank=1 op=launch "));
    EXPECT_THAT(first->last_error_line(), HasSubstr("node rank 1"));
    EXPECT_THAT(first->last_error_line(), HasSubstr("was lost: "));
  }
}

TEST_F(SeveralHosts, HostZeroSaysAtOnceWhoHasAnotherTokenAndGoesOnWaiting) {
  const auto first = host(0, "echo $RANK");
  const auto begun = std::chrono::steady_clock::now();
  const auto other = host(1, "true", {"--token-file=" + token("other", 'b')});
  first->wait_for("another token");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));
  EXPECT_EQ(other->wait(), 2); // after three tries
  const auto friendly = host(1, "echo $RANK");
  EXPECT_EQ(first->wait(), 0);
  EXPECT_EQ(first->output(), "0\n");
  EXPECT_THAT(
      first->error(),
      MatchesRegex(
          "[0-9:]{8} WARNING weftrun: refused a connection: 127.0.0.1 .another "
          "token.. If that host belongs to this run, copy host 0's "
          "--token-file to it and start weftrun there again\n"));
}

TEST_F(SeveralHosts, TimeoutNamesTheRejectedPeer) {
  const auto first = host(0, "true", {"--rdzv-conf=join_timeout=2"});
  const auto other = host(1, "true", {"--token-file=" + token("other", 'b')});
  EXPECT_EQ(other->wait(), 2);
  EXPECT_EQ(first->wait(), 150);
  EXPECT_THAT(
      first->last_error_line(),
      HasSubstr("1 of 2 hosts arrived within 2 s (--rdzv-conf join_timeout); "
                "refused: 127.0.0.1 (another token). Start weftrun on"));
}

TEST_F(SeveralHosts, AWrongTokenIdOrCommandIsRefusedAtOnce) {
  const auto first = host(0, "echo never");
  const auto other = host(1, "true", {"--token-file=" + token("other", 'b')});
  EXPECT_EQ(other->wait(), 2);
  EXPECT_THAT(other->last_error_line(), HasSubstr("has a different token"));
  const auto renamed = host(1, "true", {"--rdzv-id=else"});
  EXPECT_EQ(renamed->wait(), 2);
  EXPECT_THAT(renamed->last_error_line(), HasSubstr("a different --rdzv-id"));
  const auto twice = host(0, "echo never");
  EXPECT_EQ(twice->wait(), 2);
  EXPECT_THAT(twice->last_error_line(), HasSubstr("in use by process"));
  const auto different = host(1, "true");
  EXPECT_EQ(different->wait(), 5);
  EXPECT_EQ(first->wait(), 5);
  EXPECT_THAT(first->last_error_line(), HasSubstr("different programs"));
  EXPECT_EQ(first->output(), "");
}

TEST(SeveralHostsFlags, ATokenIsNeeded) {
  WeftrunProcess run({"--nnodes=2", "--rdzv-endpoint=127.0.0.1:1", "true"});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("openssl rand -hex 32"));
}

} // namespace
} // namespace weft::launcher
