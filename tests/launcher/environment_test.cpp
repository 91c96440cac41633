#include "launcher/environment.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/usable_cores.h"

namespace weft::launcher {
namespace {

using ::testing::Contains;
using ::testing::Pair;

std::map<std::string, std::string> environment(
    int local_rank,
    const std::vector<std::string>& base = {},
    int worker_count = 4,
    bool virtual_local_rank = false) {
  Options options;
  options.virtual_local_rank = virtual_local_rank;
  options.worker_count = worker_count;
  options.role = "trainer";
  options.run_id = "job";
  RankAssignment rank_assignment;
  rank_assignment.world_size = worker_count;
  rank_assignment.master_port = 1234;
  const WorkerContext context{
      .rank_assignment = rank_assignment,
      .workers = {0, worker_count},
      .master_fd = 7,
      .start_time = "12.5",
      .error_file = "/logs/error.json"};
  std::map<std::string, std::string> result;
  for (const auto& entry :
       worker_environment(base, options, context, local_rank)) {
    const size_t equals = entry.find('=');
    const auto [place, is_new] =
        result.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    EXPECT_TRUE(is_new) << place->first << " stands twice";
  }
  return result;
}

/// The devices that the second of two groups of two workers sees.
std::string devices_of_group(const std::vector<std::string>& base) {
  Options options;
  options.worker_count = 4;
  WorkerContext context;
  context.rank_assignment.world_size = 2;
  context.workers = {2, 2};
  context.replica_group = 1;
  context.replica_groups = 2;
  for (const auto& entry : worker_environment(base, options, context, 2)) {
    if (entry.starts_with("CUDA_VISIBLE_DEVICES=")) {
      return entry.substr(entry.find('=') + 1);
    }
  }
  return "none";
}

TEST(Environment, WithoutReplicaGroupsThoseOfTorchftAreKept) {
  EXPECT_EQ(environment(0, {"REPLICA_GROUP_ID=3"})["REPLICA_GROUP_ID"], "3");
}

TEST(Environment, AReplicaGroupSeesItsPartOfTheDevices) {
  EXPECT_EQ(devices_of_group({"CUDA_VISIBLE_DEVICES=7,5,3,1"}), "3,1");
  EXPECT_EQ(devices_of_group({"CUDA_VISIBLE_DEVICES=7,5"}), "7,5");
  EXPECT_EQ(devices_of_group({"CUDA_VISIBLE_DEVICES="}), "");
}

TEST(Environment, AReplicaGroupKnowsHowManyRanksShareTheHost) {
  Options options;
  options.worker_count = 4;
  WorkerContext context;
  context.workers = {2, 2};
  context.replica_groups = 2;
  const auto variables = worker_environment({}, options, context, 2);
  EXPECT_THAT(variables, Contains("WEFT_HOST_RANKS=4"));
  EXPECT_THAT(variables, Contains("LOCAL_WORLD_SIZE=2"));
}

TEST(Environment, IsTorchruns) {
  const auto result = environment(2);
  EXPECT_EQ(
      result,
      (std::map<std::string, std::string>{
          {"RANK", "2"},
          {"LOCAL_RANK", "2"},
          {"ROLE_RANK", "2"},
          {"GROUP_RANK", "0"},
          {"ROLE_NAME", "trainer"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"ROLE_WORLD_SIZE", "4"},
          {"GROUP_WORLD_SIZE", "1"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "1234"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_MAX_RESTARTS", "0"},
          {"TORCHELASTIC_RUN_ID", "job"},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
          {"OMP_NUM_THREADS",
           std::to_string(std::max<int64_t>(base::usable_cores() / 4, 1))},
          {"WEFT_LAUNCH_T0", "12.5"}}));
}

TEST(Environment, OnlyRankZeroGetsTheSocket) {
  const std::vector<std::string> outer{"WEFT_MASTER_FD=3"};
  EXPECT_THAT(environment(0, outer), Contains(Pair("WEFT_MASTER_FD", "7")));
  EXPECT_EQ(environment(1, outer).count("WEFT_MASTER_FD"), 0);
}

TEST(Environment, SaysWhetherErrorsEndOnATerminal) {
  WorkerContext on_terminal;
  on_terminal.stderr_is_terminal = true;
  EXPECT_THAT(
      worker_environment({}, Options(), on_terminal, 1),
      Contains("WEFT_STDERR_TTY=1"));
  EXPECT_EQ(environment(1, {"WEFT_STDERR_TTY=1"}).count("WEFT_STDERR_TTY"), 0);
}

TEST(Environment, WhatTheUserSetStays) {
  const auto result = environment(
      1, {"OMP_NUM_THREADS=6", "PATH=/bin", "ODD=a=b", "RANK=9", "EMPTY="});
  EXPECT_THAT(result, Contains(Pair("OMP_NUM_THREADS", "6")));
  EXPECT_THAT(result, Contains(Pair("PATH", "/bin")));
  EXPECT_THAT(result, Contains(Pair("ODD", "a=b")));
  EXPECT_THAT(result, Contains(Pair("EMPTY", "")));
  EXPECT_THAT(result, Contains(Pair("RANK", "1")));
}

TEST(Environment, ALoneWorkerKeepsItsThreads) {
  EXPECT_EQ(environment(0, {}, 1).count("OMP_NUM_THREADS"), 0);
}

TEST(Environment, TheOutermostStartTimeCounts) {
  EXPECT_THAT(
      environment(0, {"WEFT_LAUNCH_T0=1.25"}),
      Contains(Pair("WEFT_LAUNCH_T0", "1.25")));
}

TEST(Environment, AVirtualLocalRankSeesItsDeviceAsTheFirst) {
  const auto first = environment(3, {}, 4, true);
  EXPECT_EQ(first.at("RANK"), "3");
  EXPECT_EQ(first.at("LOCAL_RANK"), "0");
  EXPECT_EQ(first.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(first.at("CUDA_VISIBLE_DEVICES"), "3");
  EXPECT_EQ(first.at("WEFT_CUDA_DEVICE"), "0");
  const auto listed =
      environment(1, {"CUDA_VISIBLE_DEVICES=GPU-a, GPU-b"}, 2, true);
  EXPECT_EQ(listed.at("CUDA_VISIBLE_DEVICES"), "GPU-b");
  EXPECT_EQ(listed.count("HIP_VISIBLE_DEVICES"), 0);
  const auto hip = environment(
      1, {"CUDA_VISIBLE_DEVICES=5,6", "HIP_VISIBLE_DEVICES=7,8"}, 2, true);
  EXPECT_EQ(hip.at("CUDA_VISIBLE_DEVICES"), "8");
  EXPECT_EQ(hip.at("HIP_VISIBLE_DEVICES"), "8");
  const auto none = environment(1, {"CUDA_VISIBLE_DEVICES="}, 2, true);
  EXPECT_EQ(none.at("CUDA_VISIBLE_DEVICES"), "");
  EXPECT_EQ(none.at("LOCAL_RANK"), "0");
}

} // namespace
} // namespace weft::launcher
