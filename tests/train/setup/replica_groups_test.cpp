#include "train/setup/replica_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Overrides = std::vector<std::string>;

config::Recipe of_group(
    Overrides overrides,
    int64_t group_size,
    std::optional<int64_t> groups) {
  overrides.insert(overrides.begin(), "elastic.batch=fixed");
  return recipe_of_group(
      parse_recipe(fixtures::kMinRecipe, "r.yaml", overrides),
      group_size,
      groups);
}

std::string refusal(
    Overrides overrides,
    int64_t group_size,
    std::optional<int64_t> groups) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { of_group(std::move(overrides), group_size, groups); });
}

TEST(ReplicaGroups, AGroupComputesAnyMicroBatchOfTheWhole) {
  const auto recipe =
      of_group({"mesh={dp: -1, tp: -1}", "train.global_batch_size=12"}, 2, 3);
  EXPECT_EQ(recipe.mesh, (config::MeshConfig{.dp = 1, .tp = 2}));
  EXPECT_EQ(recipe.train.micro_batch_size, 4);
  EXPECT_EQ(accumulation_steps(recipe), 3);
  EXPECT_EQ(
      of_group(
          {"mesh.dp=4",
           "train.global_batch_size=16",
           "train.micro_batch_size=2"},
          1,
          4)
          .train.micro_batch_size,
      2);
}

TEST(ReplicaGroups, TheMeshIsThatOfTheGroups) {
  EXPECT_EQ(
      refusal({"mesh={dp: 2, tp: 2}"}, 1, 4),
      "override mesh={dp: 2, tp: 2}: mesh.tp: 2 vs 1 ranks of a replica group: "
      "a group is one replica. Start weftrun with --replica-size 2, or set "
      "mesh.tp=-1");
  EXPECT_EQ(
      refusal({"mesh={dp: 4, tp: 2}"}, 2, 2),
      "override mesh={dp: 4, tp: 2}: mesh.dp: 4 vs 2 replica groups. Start "
      "weftrun with --nproc-per-node 8 --replica-size 2, or set mesh.dp=-1");
  EXPECT_THAT(
      refusal({"mesh={dp: 1, tp: 1, dp_shard: 2}"}, 1, 2),
      HasSubstr(
          "mesh.dp_shard: 2 cannot be combined with elastic.batch=fixed"));
  EXPECT_THAT(
      refusal({"train.global_batch_size=16"}, 1, 3),
      HasSubstr("train.global_batch_size: 16 is not divisible by mesh.dp=3"));
}

TEST(ReplicaGroups, AreOfElasticRunsOnly) {
  EXPECT_THAT(
      refusal({}, 1, std::nullopt),
      AllOf(
          HasSubstr("elastic.batch: fixed needs replica groups"),
          HasSubstr("weftrun --replica-size N, where N is mesh.tp")));
  EXPECT_THAT(
      refusal({"elastic.batch=none"}, 1, 4),
      HasSubstr("elastic.batch: none vs 4 replica groups"));
  EXPECT_EQ(refusal({"elastic.batch=none"}, 1, std::nullopt), "");
  EXPECT_THAT(
      refusal({"elastic.batch=dynamic"}, 1, 4),
      HasSubstr("none, exact, fixed"));
}

TEST(ReplicaGroups, DivideAStepIntoLanes) {
  const auto lanes = [](int64_t wanted, int64_t micro = 0) {
    return of_group(
        {"elastic.batch=exact",
         "mesh.dp=4",
         "train.global_batch_size=24",
         "train.micro_batch_size=" + std::to_string(micro),
         "elastic.lanes=" + std::to_string(wanted)},
        1,
        4);
  };
  EXPECT_EQ(of_group({"mesh.dp=1"}, 1, 1).elastic.lanes, 0);
  EXPECT_EQ(lanes(0).elastic.lanes, 4);
  EXPECT_EQ(lanes(0).train.micro_batch_size, 6);
  EXPECT_EQ(lanes(12).train.micro_batch_size, 2);
  EXPECT_EQ(lanes(6).train.micro_batch_size, 4); // No multiple of the groups.
  EXPECT_EQ(lanes(6).mesh.dp, 1);
  EXPECT_EQ(lanes(6, 2).elastic.lanes, 6);
  const auto refused = [&](int64_t wanted, int64_t micro = 0) {
    return fixtures::message_of<mesh::UsageError>(
        [&] { lanes(wanted, micro); });
  };
  EXPECT_THAT(
      refused(3),
      HasSubstr("elastic.lanes: 3 vs 4 replica groups, of which each computes "
                "a lane. Set elastic.lanes to at least 4"));
  EXPECT_THAT(
      refused(5),
      HasSubstr("elastic.lanes: 5 does not divide train.global_batch_size=24"));
  EXPECT_THAT(refused(8, 2), HasSubstr("8 x train.micro_batch_size=2 = 16"));
  EXPECT_THAT(
      refusal({"elastic.lanes=4"}, 1, 1),
      HasSubstr("elastic.lanes: 4 has no effect with elastic.batch=fixed"));
  EXPECT_THAT(
      refusal({"elastic.batch=none", "elastic.lanes=4"}, 1, std::nullopt),
      HasSubstr("elastic.lanes: it has no effect without"));
}

TEST(ReplicaGroups, AreNotFewerThanMinGroups) {
  EXPECT_THAT(
      refusal({"elastic.min_groups=5", "mesh.dp=4"}, 1, 4),
      HasSubstr("elastic.min_groups: 5 vs 4 replica groups"));
  EXPECT_THAT(
      refusal({"elastic.batch=none", "elastic.min_groups=2"}, 1, std::nullopt),
      HasSubstr("elastic.min_groups: it has no effect without"));
  EXPECT_EQ(
      of_group(
          {"elastic.min_groups=4",
           "mesh.dp=4",
           "train.global_batch_size=16",
           "train.micro_batch_size=4"},
          1,
          4)
          .elastic.min_groups,
      4);
}

TEST(ReplicaGroups, RefuseWhatNeedsReplicasThatStayTheSame) {
  EXPECT_EQ(
      refusal({"ddp.comm_hook=powersgd"}, 1, 4),
      "override ddp.comm_hook=powersgd: ddp.comm_hook: powersgd cannot be "
      "combined with elastic.batch=fixed: replica groups come and go. Set "
      "ddp.comm_hook=none");
  EXPECT_THAT(
      refusal({"ddp.auto_bucketing=true"}, 1, 4),
      HasSubstr("Set ddp.bucket_cap_mb instead"));
  EXPECT_THAT(
      refusal({"ddp.check_for_nan_in_grad=true"}, 1, 4),
      HasSubstr("train.on_non_finite"));
  EXPECT_THAT(refusal({"trace.steps=3"}, 1, 4), HasSubstr("trace.steps=0"));
  EXPECT_THAT(
      refusal({"ddp.bucket_mode=coalesced"}, 1, 4),
      HasSubstr("Set ddp.bucket_mode=concatenated"));
  EXPECT_EQ(refusal({"ddp.bucket_mode=per_parameter"}, 1, 4), "");
  EXPECT_THAT(
      refusal({"device=cuda"}, 1, 4),
      HasSubstr("Replica groups are not supported on CUDA yet"));
}

} // namespace
} // namespace weft::train
