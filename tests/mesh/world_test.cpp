#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/rendezvous.h"
#include "mesh/bootstrap/sockets.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Sets the launcher's variables, and only those given, until it goes.
class LauncherEnv {
 public:
  explicit LauncherEnv(const std::map<std::string, std::string>& values) {
    for (const char* name :
         {"RANK",
          "WORLD_SIZE",
          "LOCAL_RANK",
          "LOCAL_WORLD_SIZE",
          "MASTER_ADDR",
          "MASTER_PORT",
          "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE",
          "PMIX_RANK",
          "PMI_RANK",
          "PMI_SIZE",
          "SLURM_JOB_ID",
          "SLURM_STEP_ID",
          "WEFT_MASTER_FD",
          "TORCHELASTIC_RESTART_COUNT",
          "TORCHELASTIC_USE_AGENT_STORE"}) {
      const char* old = std::getenv(name);
      old_[name] = old ? std::optional<std::string>(old) : std::nullopt;
      unsetenv(name);
    }
    for (const auto& [name, value] : values) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  LauncherEnv(const LauncherEnv&) = delete;
  LauncherEnv& operator=(const LauncherEnv&) = delete;
  ~LauncherEnv() {
    for (const auto& [name, value] : old_) {
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    }
  }

 private:
  std::map<std::string, std::optional<std::string>> old_;
};

/// A socket bound to a free loopback port, not yet listening.
struct BoundSocket {
  int fd;
  uint16_t port;

  BoundSocket() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
};

uint16_t free_port() {
  const BoundSocket socket;
  close(socket.fd);
  return socket.port;
}

/// The addresses, in the kernel's hexadecimal, on which `port` is listened at.
std::vector<std::string> listening_addresses(uint16_t port) {
  std::vector<std::string> addresses;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state;
      words >> slot >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && colon != std::string::npos &&
          std::stoul(local.substr(colon + 1), nullptr, 16) == port) {
        addresses.push_back(local.substr(0, colon));
      }
    }
  }
  return addresses;
}

constexpr const char* kLoopback = "0100007F";
/// Not a loopback address by its looks, but the way there ends at loopback: as
/// a host's own name on Debian.
constexpr const char* kOwnName = "0.0.0.0";

JobEnvironment job_of(int64_t rank, uint16_t port) {
  JobEnvironment job;
  job.rank = rank;
  job.world_size = 2;
  job.master_address = "localhost";
  job.master_port = port;
  return job;
}

TEST(World, WithoutALauncherItIsOneRank) {
  const LauncherEnv env({});
  const World world = World::from_env();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.world_size(), 1);
  EXPECT_EQ(world.local_rank(), 0);
  EXPECT_EQ(world.local_world_size(), 1);
  Communicator group = world.group();
  EXPECT_EQ(group.backend(), "self");
  auto mean = at::full({3}, 2.0);
  group.all_reduce(mean, ReduceOp::kAvg).wait();
  EXPECT_TRUE(at::equal(mean, at::full({3}, 2.0)));
  group.barrier();
  EXPECT_TRUE(group.flight_recorder().entries().empty());
  world.check_agreement("recipe", "any");
}

TEST(World, AWrongEnvironmentNamesTheVariable) {
  const auto refused = [](std::map<std::string, std::string> changes) {
    std::map<std::string, std::string> values{
        {"RANK", "1"},
        {"WORLD_SIZE", "4"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29500"}};
    for (const auto& [name, value] : changes) {
      values[name] = value;
    }
    const LauncherEnv env(values);
    return message_of_thrown<UsageError>([] { World::from_env(); });
  };
  EXPECT_THAT(
      refused({{"RANK", "5"}}),
      HasSubstr("[environment] RANK=5 is not an integer from 0 to 3."));
  EXPECT_THAT(refused({{"RANK", "-1"}}), HasSubstr("RANK=-1"));
  EXPECT_THAT(refused({{"RANK", "1x"}}), HasSubstr("RANK=1x"));
  EXPECT_THAT(refused({{"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(
      refused({{"WORLD_SIZE", ""}}),
      HasSubstr("WORLD_SIZE is not set, but RANK=1 is"));
  EXPECT_THAT(
      refused({{"RANK", ""}}),
      HasSubstr("RANK is not set, but WORLD_SIZE=4 is"));
  EXPECT_THAT(refused({{"MASTER_ADDR", ""}}), HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(refused({{"MASTER_PORT", ""}}), HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(refused({{"MASTER_PORT", "70000"}}), HasSubstr("70000"));
  EXPECT_THAT(refused({{"LOCAL_RANK", "9"}}), HasSubstr("LOCAL_RANK=9"));
  EXPECT_THAT(
      refused({{"RANK", "0"}, {"WEFT_MASTER_FD", "0"}}),
      HasSubstr("WEFT_MASTER_FD=0 is not a socket bound to MASTER_PORT=29500"));
}

TEST(World, AnUnknownBackendIsRefused) {
  WorldOptions options;
  options.backend = "mpi";
  EXPECT_THAT(
      message_of_thrown<UsageError>([&] { World::from_env(options); }),
      HasSubstr("'mpi' is unknown"));
}

TEST(World, OnOneHostTheStoreListensOnLoopbackAlone) {
  const LauncherEnv env({});
  const uint16_t port = free_port();
  const auto timeout = std::chrono::seconds(30);
  const auto server = connect_store(job_of(0, port), timeout);
  const auto client = connect_store(job_of(1, port), timeout);
  server->set("key", std::string("value"));
  EXPECT_EQ(client->get_to_str("key"), "value");
  EXPECT_THAT(listening_addresses(port), ElementsAre(kLoopback));
}

TEST(World, ATakenPortIsNamedWithTheWayOut) {
  const LauncherEnv env({});
  const BoundSocket socket;
  ASSERT_EQ(listen(socket.fd, 16), 0);
  auto job = job_of(0, socket.port);
  const auto refused = [&] {
    return message_of_thrown<CommError>(
        [&] { connect_store(job, std::chrono::seconds(30)); });
  };
  const auto port = std::to_string(socket.port);
  EXPECT_THAT(
      refused(),
      AllOf(
          HasSubstr("cannot listen at 127.0.0.1:" + port + ": Address already"),
          HasSubstr("Set MASTER_PORT"),
          HasSubstr("(rank 0/2)")));
  job.master_address = "any.other.host";
  job.port_origin = "SLURM_JOB_ID=7 and SLURM_STEP_ID=0";
  EXPECT_THAT(
      refused(),
      AllOf(
          HasSubstr("cannot listen at port " + port + ": Address already"),
          HasSubstr(
              "The port was made from SLURM_JOB_ID=7 and SLURM_STEP_ID=0")));
}

TEST(World, ForOtherHostsTheStoreListensEverywhere) {
  const LauncherEnv env({});
  const uint16_t port = free_port();
  auto job = job_of(0, port);
  job.master_address = kOwnName;
  const auto server = connect_store(job, std::chrono::seconds(30));
  EXPECT_THAT(
      listening_addresses(port),
      ElementsAre(AnyOf("00000000", "00000000000000000000000000000000")));
}

TEST(World, JobsInOneStoreDoNotSeeEachOther) {
  const LauncherEnv env({});
  auto job = job_of(0, free_port());
  job.job_key = "SLURM_JOB_ID=7 and SLURM_STEP_ID=0";
  const auto timeout = std::chrono::seconds(30);
  const auto server = connect_store(job, timeout);
  server->set("key", std::string("value"));
  job.rank = 1;
  EXPECT_TRUE(connect_store(job, timeout)->check({"key"}));
  job.job_key = "SLURM_JOB_ID=8 and SLURM_STEP_ID=0";
  EXPECT_FALSE(connect_store(job, timeout)->check({"key"}));
}

TEST(World, AHostWhoseOwnNameIsLoopbackListensWhereOthersSeeIt) {
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::HashStore>();
  auto job = job_of(0, 1);
  publish_address(*store, job);
  EXPECT_EQ(listening_address(*store, job), "127.0.0.1");
  EXPECT_EQ(store->getNumKeys(), 0);
  job.master_address = kOwnName;
  publish_address(*store, job);
  EXPECT_EQ(store->getNumKeys(), 0);
  EXPECT_EQ(listening_address(*store, job), "127.0.0.1");
  // The way to what another host's rank left is looked for.
  store->set("outside_address", std::string("no.such.host.invalid"));
  EXPECT_THAT(
      message_of_thrown<CommError>([&] { listening_address(*store, job); }),
      HasSubstr("cannot resolve no.such.host.invalid"));
}

TEST(World, ALaunchersSocketIsTakenOver) {
  const BoundSocket socket; // does not listen: rank 0 shall
  const LauncherEnv env({{"WEFT_MASTER_FD", std::to_string(socket.fd)}});
  const auto timeout = std::chrono::seconds(30);
  const auto server = connect_store(job_of(0, socket.port), timeout);
  EXPECT_FALSE(env::get("WEFT_MASTER_FD"));
  const auto client = connect_store(job_of(1, socket.port), timeout);
  client->set("key", std::string("value"));
  EXPECT_EQ(server->get_to_str("key"), "value");
  EXPECT_THAT(listening_addresses(socket.port), ElementsAre(kLoopback));
}

TEST(World, OneRankClosesTheLaunchersSocket) {
  const BoundSocket socket;
  ASSERT_EQ(listen(socket.fd, 16), 0);
  const LauncherEnv env(
      {{"RANK", "0"},
       {"WORLD_SIZE", "1"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", std::to_string(socket.port)},
       {"WEFT_MASTER_FD", std::to_string(socket.fd)}});
  EXPECT_EQ(World::from_env().world_size(), 1);
  EXPECT_FALSE(env::get("WEFT_MASTER_FD"));
  EXPECT_TRUE(listening_addresses(socket.port).empty());
}

TEST(World, ARestartDoesNotSeeEarlierKeys) {
  const BoundSocket socket;
  const LauncherEnv env(
      {{"WEFT_MASTER_FD", std::to_string(socket.fd)},
       {"TORCHELASTIC_RESTART_COUNT", "1"}});
  const auto timeout = std::chrono::seconds(30);
  const auto first = connect_store(job_of(0, socket.port), timeout);
  first->set("key", std::string("value"));
  setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
  const auto second = connect_store(job_of(1, socket.port), timeout);
  EXPECT_FALSE(second->check({"key"}));
}

TEST(World, AnAgentsStoreIsOnlyUsed) {
  const BoundSocket socket;
  const auto timeout = std::chrono::seconds(30);
  std::optional<LauncherEnv> env;
  env.emplace(std::map<std::string, std::string>{
      {"WEFT_MASTER_FD", std::to_string(socket.fd)}});
  const auto agent = connect_store(job_of(0, socket.port), timeout);
  env.reset();
  env.emplace(std::map<std::string, std::string>{
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const auto rank0 = connect_store(job_of(0, socket.port), timeout);
  rank0->set("key", std::string("value"));
  EXPECT_EQ(agent->get_to_str("key"), "value");
}

TEST(World, AMissingStoreIsATimeout) {
  const LauncherEnv env({});
  EXPECT_THAT(
      message_of_thrown<CommError>([] {
        connect_store(job_of(1, free_port()), std::chrono::milliseconds(1500));
      }),
      AllOf(HasSubstr("[rendezvous]"), HasSubstr("rank 1/2, store localhost")));
}

// c10d itself would wait for ever.
TEST(World, ASilentPeerIsATimeout) {
  const LauncherEnv env({});
  const uint16_t port = free_port();
  const int peer = listen_at("127.0.0.1", port);
  ASSERT_EQ(listen(peer, 1), 0);
  EXPECT_THAT(
      message_of_thrown<CommError>([&] {
        connect_store(job_of(1, port), std::chrono::milliseconds(300));
      }),
      AllOf(
          HasSubstr("[rendezvous] Timed out after 0.3 s"),
          HasSubstr("does not answer like rank 0's store"),
          HasSubstr("store localhost:" + std::to_string(port))));
  close(peer);
}

TEST(World, ARankThatIsEarlyWaitsForTheServer) {
  const LauncherEnv env({});
  const uint16_t port = free_port();
  std::string seen;
  std::thread early([&] {
    seen = connect_store(job_of(1, port), std::chrono::seconds(30))
               ->get_to_str("key");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto server = connect_store(job_of(0, port), std::chrono::seconds(30));
  server->set("key", std::string("value"));
  early.join();
  EXPECT_EQ(seen, "value");
}

TEST(World, ALaunchersAddressForOtherHostsIsUsed) {
  const LauncherEnv env({{"WEFT_BIND_ADDR", std::string("192.0.2.7")}});
  const auto store = c10::make_intrusive<c10d::HashStore>();
  publish_address(*store, job_of(0, 20000));
  EXPECT_EQ(store->getNumKeys(), 0);
  EXPECT_EQ(listening_address(*store, job_of(0, 20000)), "192.0.2.7");
}

TEST(World, AnUnknownHostIsNamed) {
  const LauncherEnv env({});
  auto job = job_of(1, 20000);
  job.master_address = "no.such.host.invalid";
  EXPECT_THAT(
      message_of_thrown<CommError>(
          [&] { connect_store(job, std::chrono::milliseconds(500)); }),
      AllOf(
          HasSubstr("[rendezvous] cannot resolve no.such.host.invalid: "),
          HasSubstr("Set MASTER_ADDR")));
}

TEST(World, FromEnvSaysHowManyRanksCame) {
  const BoundSocket socket;
  const LauncherEnv env(
      {{"RANK", "0"},
       {"WORLD_SIZE", "3"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", std::to_string(socket.port)},
       {"WEFT_MASTER_FD", std::to_string(socket.fd)}});
  WorldOptions options;
  options.timeout = std::chrono::milliseconds(500);
  EXPECT_THAT(
      message_of_thrown<CommError>([&] { World::from_env(options); }),
      AllOf(
          HasSubstr("Timed out after 0.5 s"),
          HasSubstr("1 of 3 ranks came, without ranks ")));
}

TEST(World, FromEnvIsForOneWorldAProcess) {
  const BoundSocket socket;
  const LauncherEnv env(
      {{"RANK", "0"},
       {"WORLD_SIZE", "2"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", std::to_string(socket.port)},
       {"WEFT_MASTER_FD", std::to_string(socket.fd)}});
  JobEnvironment other = job_of(1, socket.port);
  WorldOptions options;
  options.watch.enabled = false;
  std::thread peer([&] {
    const auto store = connect_store(other, std::chrono::seconds(30));
    store->set("world/arrived/1", std::string("1"));
    if (store->add("world/arrived", 1) == 2) {
      store->set("world/all_arrived", std::string("1"));
    }
  });
  {
    const auto world = World::from_env(options);
    EXPECT_THAT(
        message_of_thrown<UsageError>([&] { World::from_env(options); }),
        AllOf(
            HasSubstr("[world] This process already created a World from its "
                      "environment"),
            HasSubstr("Create it once and pass copies of it"),
            HasSubstr("(rank 0/2)")));
  }
  peer.join();
  // What is gone is not in the way.
  const LauncherEnv alone({});
  EXPECT_EQ(World::from_env().world_size(), 1);
}

TEST(World, AnAddressOfThisHostIsFound) {
  EXPECT_EQ(local_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  EXPECT_THROW(local_address_towards("no.such.host.invalid"), CommError);
}

TEST(World, AFakeWorldMovesNothing) {
  const World world = World::fake(2, 4);
  Communicator group = world.group();
  auto value = at::full({2}, 5.0);
  group.all_reduce(value).wait();
  EXPECT_TRUE(at::equal(value, at::full({2}, 5.0)));
  auto gathered = at::full({4, 2}, 99.0);
  group.all_gather(gathered, value).wait();
  EXPECT_TRUE(at::equal(gathered[2], value));
  EXPECT_TRUE(at::equal(gathered[0], at::zeros({2})));
  auto part = at::empty({2});
  group.reduce_scatter(part, at::arange(8.0)).wait();
  EXPECT_TRUE(at::equal(part, torch::tensor({4.0F, 5.0F})));
  auto shape_only = at::empty({4, 3}, at::kMeta);
  group.all_gather(shape_only, at::empty({3}, at::kMeta)).wait();
  group.all_reduce(shape_only.t()).wait();
  group.barrier();
  world.check_agreement("recipe", "any");
}

TEST(WorldRanks, AgreementNamesTheFirstRankAndBothValues) {
  run_ranks(4, [](RankContext& self) {
    self.world.check_agreement("recipe", "same");
    const auto message = message_of_thrown<DisagreementError>([&] {
      self.world.check_agreement("version", self.rank >= 2 ? "0.2" : "0.1");
    });
    EXPECT_THAT(
        message,
        HasSubstr(
            "[agreement] version: rank 0 has '0.1' vs rank 2 has '0.2'."));
    self.world.check_agreement("version", "fixed");
  });
}

TEST(WorldRanks, AgreementOnLongValuesShowsTheDifference) {
  run_ranks(2, [](RankContext& self) {
    std::string value(100000, 'a');
    self.world.check_agreement("parameters", value);
    value[2000] = self.rank == 0 ? 'x' : 'y';
    EXPECT_THAT(
        message_of_thrown<DisagreementError>(
            [&] { self.world.check_agreement("parameters", value); }),
        AllOf(HasSubstr("aaaxaaa"), HasSubstr("aaayaaa")));
    value[2000] = 'a';
    value[99999] = self.rank == 0 ? 'x' : 'y';
    EXPECT_THROW(
        self.world.check_agreement("parameters", value), DisagreementError);
  });
}

TEST(WorldRanks, RanksThatCompareDifferentThingsAreTold) {
  run_ranks(2, [](RankContext& self) {
    EXPECT_THAT(
        message_of_thrown<DisagreementError>([&] {
          self.world.check_agreement(self.rank == 0 ? "mesh" : "recipe", "v");
        }),
        AllOf(HasSubstr("'mesh'"), HasSubstr("'recipe'")));
  });
}

TEST(WorldRanks, ARankThatDoesNotComeIsNamed) {
  run_ranks(
      3,
      [](RankContext& self) {
        if (self.rank == 0) {
          EXPECT_THAT(
              message_of_thrown<CommError>(
                  [&] { self.world.check_agreement("recipe", "v"); }),
              AllOf(
                  HasSubstr("Timed out after 0.4 s"),
                  HasSubstr("Rank 1 has not arrived")));
        }
      },
      std::chrono::milliseconds(400));
}

TEST(WorldRanks, IdsAreTheSameOnAllRanksAndNew) {
  run_ranks(2, [](RankContext& self) {
    EXPECT_EQ(self.world.next_id(), 0);
    EXPECT_EQ(self.world.next_id(), 1);
  });
}

TEST(WorldRanks, GroupsOfWrongRanksAreRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto refused = [&](std::vector<int64_t> ranks) {
      return message_of_thrown<c10::ValueError>(
          [&] { self.world.make_group("pair", ranks); });
    };
    EXPECT_THAT(refused({0, 2}), HasSubstr("names rank 2"));
    EXPECT_THAT(refused({0, 0}), HasSubstr("names rank 0 twice"));
    EXPECT_THAT(refused({1 - self.rank}), HasSubstr("not a member of group"));
    self.world.make_group("pair", {0, 1});
    EXPECT_THAT(refused({0, 1}), HasSubstr("\"pair\" already exists"));
  });
}

} // namespace
} // namespace weft::mesh
