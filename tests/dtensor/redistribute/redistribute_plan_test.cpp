#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/redistribute/redistribute_plan.h"
#include "mesh/link_cost.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor {
namespace {

using dtensor::test::fake_mesh;
using ::testing::ElementsAre;

mesh::DeviceMesh square(int64_t rank = 0) {
  return fake_mesh(rank, {2, 2}, {"dp", "tp"});
}

std::shared_ptr<const RedistributePlan> plan_of(
    const mesh::DeviceMesh& mesh,
    const Placements& from,
    const Placements& to,
    const std::vector<int64_t>& sizes) {
  return find_plan(
      fitted(DTensorSpec(mesh, from), sizes),
      fitted(DTensorSpec(mesh, to), sizes),
      sizes,
      4);
}

// "all_gather over dp tp".
std::vector<std::string> text_of(
    const mesh::DeviceMesh& mesh,
    const RedistributePlan& plan) {
  std::vector<std::string> lines;
  for (const auto& step : plan.steps) {
    std::string line(to_string(step.kind));
    for (const int64_t i : step.mesh_dims) {
      line += " " + mesh.mesh_dim_names()[i];
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> steps_of(
    const Placements& from,
    const Placements& to,
    const std::vector<int64_t>& sizes = {64, 64}) {
  const auto mesh = square();
  return text_of(mesh, *plan_of(mesh, from, to, sizes));
}

TEST(RedistributePlan, StepsOfOneKindOverSeveralMeshDimsAreOneCollective) {
  EXPECT_THAT(
      steps_of({Shard(0), Shard(0)}, {Replicate(), Replicate()}),
      ElementsAre("all_gather dp tp"));
  EXPECT_THAT(
      steps_of({Shard(0), Shard(1)}, {Replicate(), Replicate()}, {5, 3}),
      ElementsAre("all_gather dp tp"));
  EXPECT_THAT(
      steps_of({Partial(), Partial()}, {Replicate(), Replicate()}),
      ElementsAre("all_reduce dp tp"));
  EXPECT_THAT(
      steps_of({Partial(), Partial()}, {Shard(0), Shard(0)}),
      ElementsAre("reduce_scatter dp tp"));
  EXPECT_THAT(
      steps_of({Shard(0), Shard(1)}, {Shard(1), Shard(0)}),
      ElementsAre("all_to_all dp tp"));
}

TEST(RedistributePlan, RowsOfOneDimAreExchangedDirectly) {
  EXPECT_THAT(
      steps_of({Replicate(), StridedShard(0, 4)}, {Replicate(), Shard(0)}),
      ElementsAre("all_to_all tp"));
  EXPECT_THAT(
      steps_of({Replicate(), Shard(0)}, {Replicate(), StridedShard(0, 4)}),
      ElementsAre("all_to_all tp"));
  // The order of the cuts alone.
  EXPECT_THAT(
      steps_of({Shard(0), Shard(0)}, {StridedShard(0, 2), Shard(0)}),
      ElementsAre("all_to_all dp tp"));
}

TEST(RedistributePlan, SlicesComeBeforeReductions) {
  EXPECT_THAT(
      steps_of({Partial(), Replicate()}, {Replicate(), Shard(0)}),
      ElementsAre("local tp", "all_reduce dp"));
}

TEST(RedistributePlan, ReductionsThatDoNotCommuteStayInOrder) {
  EXPECT_THAT(
      steps_of(
          {Partial(), Partial(ReduceOp::kMax)}, {Replicate(), Replicate()}),
      ElementsAre("all_reduce tp", "all_reduce dp"));
}

TEST(RedistributePlan, PricesOfLinksDecide) {
  const std::vector<int64_t> large{1024, 4096};
  const Placements from{Partial(), Partial()};
  const Placements to{Replicate(), Replicate()};
  const auto mesh = fake_mesh(0, {2, 4}, {"dp", "tp"});
  EXPECT_THAT(
      text_of(mesh, *plan_of(mesh, from, to, large)),
      ElementsAre("all_reduce dp tp"));

  const auto slow = fake_mesh(0, {2, 4}, {"dp", "tp"});
  mesh::set_link_cost(slow, "dp", {.latency_us = 50, .bandwidth_gb_s = 1});
  mesh::set_link_cost(slow, "tp", {.latency_us = 4, .bandwidth_gb_s = 300});
  // Across the slow links goes a quarter; there is no cut before or after.
  const Placements cut{Partial(), Shard(0)};
  EXPECT_THAT(
      text_of(slow, *plan_of(slow, from, {Replicate(), Shard(0)}, large)),
      ElementsAre("reduce_scatter tp", "all_reduce dp"));
  EXPECT_THAT(
      text_of(slow, *plan_of(slow, cut, to, large)),
      ElementsAre("all_reduce dp", "all_gather tp"));
}

TEST(RedistributePlan, AllRanksPlanAlikeAndNeverDearerThanOneDimAtATime) {
  const std::vector<Placement> choices{
      Replicate(),
      Shard(0),
      Shard(1),
      StridedShard(0, 2),
      Partial(),
      Partial(ReduceOp::kAvg)};
  const std::vector<int64_t> sizes{5, 3};
  std::vector<mesh::DeviceMesh> meshes;
  for (int64_t rank = 0; rank < 4; ++rank) {
    meshes.push_back(square(rank));
  }
  for (const auto& a : choices) {
    for (const auto& b : choices) {
      for (const auto& c : choices) {
        for (const auto& d : choices) {
          const auto first = plan_of(meshes[0], {a, b}, {c, d}, sizes);
          const auto text = text_of(meshes[0], *first);
          for (const auto& mesh : meshes) {
            const auto plan = plan_of(mesh, {a, b}, {c, d}, sizes);
            EXPECT_EQ(text_of(mesh, *plan), text);
            EXPECT_EQ(plan->us, first->us);
          }
          int64_t messages = 0;
          for (const auto& step : plan_redistribute(
                   fitted(DTensorSpec(meshes[0], {a, b}), sizes),
                   fitted(DTensorSpec(meshes[0], {c, d}), sizes))) {
            messages += step_kind(step.from, step.to) != StepKind::kLocal;
          }
          const auto sent = std::ranges::count_if(
              first->steps,
              [](const auto& step) { return step.kind != StepKind::kLocal; });
          EXPECT_LE(sent, messages) << to_string({a, b}) << to_string({c, d});
        }
      }
    }
  }
}

TEST(RedistributePlan, ManyMeshDimsHaveAPlanToo) {
  const std::vector<std::string> names{"a", "b", "c", "d", "e", "f"};
  const auto mesh = fake_mesh(0, {2, 2, 2, 2, 2, 2}, names);
  const Placements from{
      Shard(0), Shard(1), Partial(), Shard(0), Shard(2), Replicate()};
  const Placements to{
      Shard(1), Shard(2), Shard(0), Replicate(), Shard(0), Shard(2)};
  const auto plan = plan_of(mesh, from, to, {64, 64, 64});
  ASSERT_FALSE(plan->steps.empty());
  EXPECT_EQ(plan->steps.back().to, to);
}

} // namespace
} // namespace weft::dtensor
