#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/placement.h"
#include "dtensor/redistribute.h"
#include "dtensor/spec.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"

namespace weft::dtensor {
namespace {

using dtensor::test::fake_line;
using dtensor::test::fake_mesh;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;

TEST(Placement, PrintsAndReadsBack) {
  for (const auto* text :
       {"R",
        "S(0)",
        "S(3)",
        "S(-1)",
        "P(sum)",
        "P(avg)",
        "P(min)",
        "P(max)",
        "P(product)"}) {
    EXPECT_EQ(Placement::parse(text).to_string(), text);
  }
  EXPECT_EQ(Placement::parse("S(2)"), Shard(2));
  EXPECT_EQ(Placement::parse("P(max)"), Partial(ReduceOp::kMax));
  EXPECT_EQ(Placement(), Replicate());
  EXPECT_EQ(to_string({Shard(0), Replicate(), Partial()}), "[S(0), R, P(sum)]");
}

TEST(Placement, BadTextIsRefusedWithTheForms) {
  for (const auto* text :
       {"",
        "r",
        "S",
        "S()",
        "S(x)",
        "S(1",
        "S(1)x",
        "S(1 )",
        "P()",
        "P(mean)",
        "R()",
        "P(sum",
        "S(99999999999999999999)"}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { Placement::parse(text); }),
        AllOf(
            HasSubstr("'" + std::string(text) + "'"),
            HasSubstr("S(<dim>), R or P(sum|avg|min|max|product)")));
  }
}

TEST(Placement, NegativeDimsCountFromTheEnd) {
  EXPECT_EQ(Shard(-1).normalized(3), Shard(2));
  EXPECT_EQ(Shard(-3).normalized(3), Shard(0));
  EXPECT_EQ(Replicate().normalized(0), Replicate());
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([] { Shard(-4).normalized(3); }),
      HasSubstr("S(-4) cuts a dim that a tensor of 3 dims does not have"));
  EXPECT_THROW(Shard(0).normalized(0), c10::ValueError);
}

TEST(Placement, CodesTellPlacementsApart) {
  std::set<int64_t> codes;
  for (const auto* text :
       {"R", "S(0)", "S(1)", "S(-1)", "P(sum)", "P(avg)", "P(min)"}) {
    codes.insert(Placement::parse(text).code());
  }
  EXPECT_EQ(codes.size(), 7U);
}

TEST(ShardRange, SplitsAsChunkDoes) {
  const auto lengths = [](int64_t size, int64_t n) {
    std::vector<int64_t> result;
    int64_t end = 0;
    for (int64_t r = 0; r < n; ++r) {
      const auto range = shard_range(size, n, r);
      EXPECT_EQ(range.begin, end);
      EXPECT_EQ(range.chunk, (size + n - 1) / n);
      end = range.begin + range.length;
      result.push_back(range.length);
    }
    EXPECT_EQ(end, size);
    return result;
  };
  EXPECT_THAT(lengths(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(lengths(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(lengths(1, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(lengths(0, 2), ElementsAre(0, 0));
  EXPECT_THAT(lengths(9, 4), ElementsAre(3, 3, 3, 0));
}

TEST(LocalBox, NestedShardsCutWhatTheOuterOnesLeft) {
  const std::vector<int64_t> sizes{5, 3};
  std::vector<std::vector<int64_t>> rows;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const DTensorSpec spec(
        fake_mesh(rank, {2, 2}, {"dp", "tp"}), {Shard(0), Shard(0)});
    const auto box = local_box(spec, sizes);
    rows.push_back({box.offset[0], box.sizes[0], box.offset[1], box.sizes[1]});
  }
  // 5 rows: 3 and 2; then 2, 1 and 1, 1.
  EXPECT_THAT(
      rows,
      ElementsAre(
          ElementsAre(0, 2, 0, 3),
          ElementsAre(2, 1, 0, 3),
          ElementsAre(3, 1, 0, 3),
          ElementsAre(4, 1, 0, 3)));
}

TEST(LocalBox, PartsOfDifferentDimsAndEmptyOnes) {
  const DTensorSpec spec(
      fake_mesh(5, {2, 3}, {"dp", "tp"}), {Shard(1), Shard(0)});
  const auto box = local_box(spec, {2, 7});
  EXPECT_THAT(box.offset, ElementsAre(2, 4));
  EXPECT_THAT(box.sizes, ElementsAre(0, 3));
  const auto whole = local_box(DTensorSpec(fake_line(1, 2), {Partial()}), {4});
  EXPECT_THAT(whole.sizes, ElementsAre(4));
  EXPECT_TRUE(local_box(DTensorSpec(), {}).sizes.empty());
}

TEST(Spec, EqualSpecsShareOneEntry) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  const DTensorSpec a(mesh, {Shard(0), Replicate()});
  const DTensorSpec b(mesh, {Shard(0), Replicate()});
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.id(), b.id());
  EXPECT_FALSE(a == a.with(1, Shard(0)));
  EXPECT_FALSE(a == DTensorSpec(fake_line(0, 2), {Shard(0)}));
  EXPECT_EQ(DTensorSpec(mesh, a.id()), a);
  EXPECT_EQ(a.to_string(), "[S(0), R] on dp=2 tp=2");
  EXPECT_EQ(DTensorSpec().to_string(), "unplaced");
  EXPECT_TRUE(a.has_shard());
  EXPECT_FALSE(a.has_partial());
  const auto partial = a.with(1, Partial());
  EXPECT_TRUE(partial.has_partial());
  EXPECT_EQ(partial.without_partial(), a);
  EXPECT_TRUE(DTensorSpec(mesh, {Replicate(), Replicate()}).is_replicated());
}

TEST(Spec, OnePlacementAMeshDim) {
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([] {
        DTensorSpec(fake_mesh(2, {2, 2}, {"dp", "tp"}), {Shard(0)});
      }),
      AllOf(
          HasSubstr("1 vs 2"),
          HasSubstr("[S(0)]"),
          HasSubstr("rank 2/4, mesh dp=2 tp=2")));
}

TEST(Strides, FollowTheOrderOfDims) {
  EXPECT_THAT(row_major_strides({2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(dense_strides({2, 3, 4}, {12, 1, 3}), ElementsAre(12, 1, 3));
  EXPECT_THAT(dense_strides({4, 3}, {1, 8}), ElementsAre(1, 4));
  EXPECT_THAT(dense_strides({2, 0, 4}, {8, 4, 1}), ElementsAre(4, 4, 1));
}

std::string plan_text(
    const mesh::DeviceMesh& mesh,
    const Placements& from,
    const Placements& to) {
  std::string text;
  for (const auto& step :
       plan_redistribute(DTensorSpec(mesh, from), DTensorSpec(mesh, to))) {
    text += (text.empty() ? "" : "; ") + mesh.mesh_dim_names()[step.mesh_dim] +
            " " + step.from.to_string() + "->" + step.to.to_string();
  }
  return text;
}

TEST(Plan, OneMeshDimIsOneStep) {
  const auto mesh = fake_line(0, 2);
  EXPECT_EQ(plan_text(mesh, {Shard(0)}, {Shard(0)}), "");
  EXPECT_EQ(plan_text(mesh, {Shard(0)}, {Replicate()}), "tp S(0)->R");
  EXPECT_EQ(plan_text(mesh, {Shard(0)}, {Shard(1)}), "tp S(0)->S(1)");
  EXPECT_EQ(plan_text(mesh, {Partial()}, {Shard(1)}), "tp P(sum)->S(1)");
  EXPECT_EQ(
      plan_text(mesh, {Partial()}, {Partial(ReduceOp::kMax)}),
      "tp P(sum)->R; tp R->P(max)");
}

TEST(Plan, InnerShardsAreGatheredBeforeTheOuterOnesTheyCut) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(
      plan_text(mesh, {Shard(0), Shard(0)}, {Replicate(), Replicate()}),
      "tp S(0)->R; dp S(0)->R");
  // Giving up only the outer one cuts the rows in another way.
  EXPECT_EQ(
      plan_text(mesh, {Shard(0), Shard(0)}, {Replicate(), Shard(0)}),
      "tp S(0)->R; dp S(0)->R; tp R->S(0)");
  EXPECT_EQ(
      plan_text(mesh, {Shard(0), Replicate()}, {Shard(0), Shard(0)}),
      "tp R->S(0)");
  // The exchange of one mesh dim does not touch the other's tensor dim.
  EXPECT_EQ(
      plan_text(mesh, {Replicate(), Shard(0)}, {Replicate(), Shard(1)}),
      "tp S(0)->S(1)");
}

} // namespace
} // namespace weft::dtensor
