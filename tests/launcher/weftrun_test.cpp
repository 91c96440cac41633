// What a launch that runs to its end does, with the real program.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/usable_cores.h"
#include "launcher/process/error.h"
#include "launcher/process/master_socket.h"
#include "tests/launcher/run_weftrun.h"
#include "tests/support/temp_folder.h"

namespace weft::launcher {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using ::testing::StrEq;
using ::testing::UnorderedElementsAre;

bool can_connect(int port) {
  const base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(
             fd.get(),
             reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) == 0;
}

/// A server that binds `port` of all addresses by itself.
class Listener {
 public:
  explicit Listener(int port)
      : fd_(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const int off = 0;
    setsockopt(fd_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    listens_ = bind(
                   fd_.get(),
                   reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)) == 0 &&
               listen(fd_.get(), 16) == 0;
  }
  bool listens() const { return listens_; }

 private:
  base::UniqueFd fd_;
  bool listens_ = false;
};

TEST(Weftrun, SucceedsSilently) {
  WeftrunProcess run({"--nproc-per-node=3", "true"});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output(), "");
  EXPECT_EQ(run.error(), "");
}

TEST(Weftrun, GivesEachRankItsEnvironment) {
  WeftrunProcess run(
      shell(
          3,
          "echo \"$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
          "$MASTER_ADDR $OMP_NUM_THREADS $TORCHELASTIC_RUN_ID "
          "fd:${WEFT_MASTER_FD:+yes} ${WEFT_LAUNCH_T0%.*}\"",
          {"--rdzv-id", "job"}),
      {{"WEFT_LAUNCH_T0", "77.5"}});
  EXPECT_EQ(run.wait(), 0) << run.error();
  const auto rest =
      " 3 3 0 127.0.0.1 " +
      std::to_string(std::max<int64_t>(base::usable_cores() / 3, 1)) +
      " job fd:";
  EXPECT_THAT(
      lines_of(run.output()),
      UnorderedElementsAre(
          "0 0" + rest + "yes 77", "1 1" + rest + " 77", "2 2" + rest + " 77"));
}

TEST(Weftrun, StartTimeIsNow) {
  WeftrunProcess run(shell(1, "echo $WEFT_LAUNCH_T0"));
  const double before = static_cast<double>(time(nullptr));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_NEAR(std::stod(run.output()), before, 60);
}

TEST(Weftrun, PassesTheProgramsArgumentsOn) {
  WeftrunProcess run(
      {"--", "printf", "<%s>", "a b", "--tee=3", "--", "", "$HOME"});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output(), "<a b><--tee=3><--><><$HOME>");
}

TEST(Weftrun, PassesBytesThroughUnchanged) {
  const test::TempFolder folder;
  const std::string path = folder / "bytes";
  WeftrunProcess make(
      shell(1, "head -c 3000000 /dev/urandom > '" + path + "'"));
  ASSERT_EQ(make.wait(), 0);
  WeftrunProcess run(shell(1, "cat '" + path + "'; cat '" + path + "' >&2"));
  EXPECT_EQ(run.wait(), 0);
  const std::string bytes = read_file(path);
  ASSERT_EQ(bytes.size(), 3000000);
  EXPECT_TRUE(run.output() == bytes);
  EXPECT_TRUE(run.error() == bytes);
}

TEST(Weftrun, CarriesManyMegabytesOfAllRanksAtOnce) {
  WeftrunProcess run(shell(
      4, "head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2; wait"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output().size(), 80000000);
  EXPECT_EQ(run.error().size(), 80000000);
}

TEST(Weftrun, RankZeroReadsStandardInput) {
  WeftrunProcess run(shell(2, "echo \"$RANK:$(cat)\""));
  run.close_input();
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(lines_of(run.output()), UnorderedElementsAre("0:", "1:"));
}

TEST(Weftrun, PassesTheExitCodeOnWithTheLastWords) {
  WeftrunProcess run(shell(
      3,
      "if [ $RANK = 1 ]; then echo 'ERROR 3 rank=1 op=loss nan' >&2; "
      "echo closing >&2; exit 3; fi; exec sleep 100"));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.error(), StartsWith("ERROR 3 rank=1 op=loss nan\nclosing\n"));
  EXPECT_THAT(run.error(), HasSubstr("weftrun: 1 of 3 workers failed"));
  EXPECT_THAT(
      run.error(),
      HasSubstr("    | ERROR 3 rank=1 op=loss nan\n    | closing\n"));
  EXPECT_THAT(run.error(), HasSubstr("then ended by weftrun: rank 0, 2\n"));
  EXPECT_EQ(run.last_error_line(), "ERROR 3 rank=1 op=loss nan");
}

TEST(Weftrun, TheLogLevelIsPassedToTheWorkers) {
  WeftrunProcess by_flag(
      shell(1, "echo $WEFT_LOG_LEVEL", {"--log-level", "warning"}),
      {{"WEFT_LOG_LEVEL", "debug"}});
  EXPECT_EQ(by_flag.wait(), 0);
  EXPECT_EQ(by_flag.output(), "warning\n");
  WeftrunProcess refused(shell(1, "true"), {{"WEFT_LOG_LEVEL", "loud"}});
  EXPECT_EQ(refused.wait(), 2);
  EXPECT_THAT(
      refused.last_error_line(), HasSubstr("WEFT_LOG_LEVEL: got \"loud\""));
}

TEST(Weftrun, ADeathBySignalIs128PlusIt) {
  WeftrunProcess run(
      shell(4, "if [ $RANK = 2 ]; then kill -9 $$; fi; exec sleep 100"));
  EXPECT_EQ(run.wait(), 137);
  EXPECT_THAT(run.error(), HasSubstr("signal 9 (SIGKILL)"));
  EXPECT_THAT(
      run.last_error_line(),
      AnyOf(
          StrEq(
              "ERROR 137 rank=2 op=launch worker killed by signal 9 (SIGKILL)"),
          StrEq("ERROR 137 rank=2 op=launch worker killed by signal 9 "
                "(SIGKILL) from another process; not an OOM kill")));
}

TEST(Weftrun, BlamesTheRankThatDiedNotThoseThatLostIt) {
  WeftrunProcess run(shell(
      3,
      "if [ $RANK = 1 ]; then kill -ABRT $$; fi; "
      "echo 'ERROR 150 rank=0 op=all_reduce peer lost' >&2; exit 150"));
  EXPECT_EQ(run.wait(), 134);
  EXPECT_THAT(run.error(), HasSubstr("weftrun: 3 of 3 workers failed"));
  EXPECT_EQ(
      run.last_error_line(),
      "ERROR 134 rank=1 op=launch worker killed by signal 6 (SIGABRT)");
}

TEST(Weftrun, TheLastLineStandsAlone) {
  WeftrunProcess run(shell(1, "printf 'no newline' >&2; kill -TERM $$"));
  EXPECT_EQ(run.wait(), 143);
  EXPECT_THAT(run.error(), StartsWith("no newline\n"));
  EXPECT_THAT(
      run.error(), HasSubstr(" ERROR weftrun: 1 of 1 workers failed\n"));
  EXPECT_EQ(
      run.last_error_line(),
      "ERROR 143 rank=0 op=launch worker killed by signal 15 (SIGTERM)");
}

TEST(Weftrun, UsageErrorsAreExitCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--nproc=2", "true"}, ".*Did you mean --nproc-per-node\\?.*"},
      {{"--nnodes=2", "true"}, ".*requires the address of host 0.*"},
      {{}, ".*no program to start.*"},
      {{"no-such-program"}, ".*'no-such-program' is not in PATH.*"},
      {{"/no/such"}, ".*'/no/such' does not exist.*"},
      {{"/etc/passwd"}, ".*'/etc/passwd' is not executable.*"},
      {{"/etc"}, ".*'/etc' is a folder.*"},
      {{"--master-addr=192.0.2.1", "true"}, ".*not an address of this host.*"},
      {{"--log-dir=/dev/null/x", "true"}, ".*log folder /dev/null/x.*"},
  };
  for (const auto& [arguments, expected] : cases) {
    WeftrunProcess run(arguments);
    EXPECT_EQ(run.wait(), 2);
    EXPECT_EQ(count(run.error(), "\n"), 1);
    EXPECT_THAT(
        run.last_error_line(),
        MatchesRegex("ERROR 2 rank=0 op=launch " + expected));
  }
}

TEST(Weftrun, AProgramThatCannotStartIsNamed) {
  const test::TempFolder folder;
  const std::string path = folder / "odd";
  WeftrunProcess make(
      shell(1, "echo data > '" + path + "'; chmod +x '" + path + "'"));
  ASSERT_EQ(make.wait(), 0);
  WeftrunProcess run({"--nproc-per-node=2", path});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.last_error_line(), HasSubstr("'" + path + "' could not"));
}

TEST(Weftrun, RankZeroInheritsASocketThatOnlyKeepsThePort) {
  WeftrunProcess run(shell(
      2,
      "if [ $RANK = 0 ]; then readlink /proc/$$/fd/$WEFT_MASTER_FD; "
      "echo port=$MASTER_PORT; cat > /dev/null; fi"));
  run.wait_for("port=");
  run.wait_for("\n", 2);
  EXPECT_THAT(run.output(), StartsWith("socket:["));
  const int port = std::stoi(run.output().substr(run.output().find('=') + 1));
  EXPECT_FALSE(can_connect(port));
  const Listener own(port); // as torch's TCPStore in a Python rank 0
  EXPECT_TRUE(own.listens());
  EXPECT_TRUE(can_connect(port));
  run.close_input();
  EXPECT_EQ(run.wait(), 0);
}

TEST(Weftrun, LaunchesAtOnceHavePortsOfTheirOwn) {
  std::vector<std::unique_ptr<WeftrunProcess>> runs;
  for (int i = 0; i < 20; ++i) {
    runs.push_back(std::make_unique<WeftrunProcess>(shell(
        2, "if [ $RANK = 0 ]; then echo $MASTER_PORT; cat > /dev/null; fi")));
  }
  std::set<std::string> ports;
  for (const auto& run : runs) {
    run->wait_for("\n");
    ports.insert(run->output());
  }
  EXPECT_EQ(ports.size(), 20);
  for (const auto& run : runs) {
    run->close_input();
    EXPECT_EQ(run->wait(), 0) << run->error();
  }
}

TEST(Weftrun, ABusyPortIsNamedWithItsOwner) {
  const MasterSocket busy("127.0.0.1", 0);
  const std::string port = std::to_string(busy.port());
  WeftrunProcess run({"--master-port", port, "true"});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(
      run.last_error_line(),
      StartsWith(
          "ERROR 2 rank=0 op=launch --master-port " + port +
          " is in use by process " + std::to_string(getpid()) + " ("));
}

TEST(Weftrun, ASecondRunAtAFixedPortIsRefused) {
  const int port = MasterSocket("127.0.0.1", 0).port();
  const std::string flag = "--master-port=" + std::to_string(port);
  WeftrunProcess first(shell(1, "echo ready; cat > /dev/null", {flag}));
  first.wait_for("ready");
  WeftrunProcess second({flag, "true"});
  EXPECT_EQ(second.wait(), 2);
  EXPECT_THAT(
      second.last_error_line(),
      HasSubstr(
          "in use by process " + std::to_string(first.pid()) + " (weftrun)"));
  first.close_input();
  EXPECT_EQ(first.wait(), 0);
}

TEST(Weftrun, AFixedPortIsKept) {
  int port = 0;
  {
    const MasterSocket free("localhost", 0);
    port = free.port();
  }
  WeftrunProcess run(shell(
      1,
      "echo $MASTER_ADDR:$MASTER_PORT",
      {"--master-addr=localhost", "--master-port", std::to_string(port)}));
  EXPECT_EQ(run.wait(), 0) << run.error();
  EXPECT_EQ(run.output(), "localhost:" + std::to_string(port) + "\n");
}

TEST(Weftrun, AReaderThatLeavesDoesNotEndTheRun) {
  WeftrunProcess run(shell(1, "head -c 3000000 /dev/zero >&2; cat; exit 7"));
  run.close_error();
  run.close_input();
  EXPECT_EQ(run.wait(), 7);
}

TEST(Weftrun, ClosedStandardStreamsAreNoTrouble) {
  const std::string weftrun = WEFT_WEFTRUN;
  const test::TempFolder folder;
  WeftrunProcess run(shell(
      1,
      "'" + weftrun + "' --log-dir '" + folder.path().string() +
          "' -t 3 --nproc-per-node 2 -- /bin/sh -c 'echo out; echo err >&2; "
          "exit 4' <&- >&- 2>&-; echo code $?"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output(), "code 4\n");
}

TEST(Weftrun, NestsWithoutMixingUpSockets) {
  const std::string weftrun = WEFT_WEFTRUN;
  WeftrunProcess run(shell(
      1,
      "echo \"outer $MASTER_PORT $WEFT_LAUNCH_T0\"; '" + weftrun +
          "' -- /bin/sh -c 'echo inner $MASTER_PORT $WEFT_LAUNCH_T0'"));
  EXPECT_EQ(run.wait(), 0) << run.error();
  std::istringstream words(run.output());
  std::string outer, outer_port, outer_time, inner, inner_port, inner_time;
  words >> outer >> outer_port >> outer_time >> inner >> inner_port >>
      inner_time;
  EXPECT_NE(outer_port, inner_port);
  EXPECT_EQ(outer_time, inner_time);
}

} // namespace
} // namespace weft::launcher
