#include <set>
#include <unordered_set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/spec/dim_shards.h"
#include "dtensor/spec/placement.h"
#include "dtensor/spec/spec.h"
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
        "P(product)",
        "S(0, [3, 5])",
        "S(-1, [0])",
        "_S(0, 2)",
        "_S(-2, 16)"}) {
    EXPECT_EQ(Placement::parse(text).to_string(), text);
  }
  EXPECT_EQ(Placement::parse("S(1,[2,0])"), Shard(1, {2, 0}));
  EXPECT_EQ(Placement::parse("_S(1,3)"), StridedShard(1, 3));
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
        "S(99999999999999999999)",
        "S(0, [])",
        "S(0, [1, 2)",
        "S(0, [1 2])",
        "S(0, 1)",
        "S(0, [1]",
        "S(0 , [1])",
        "_S(0)",
        "_S(0, x)",
        "_S(0, 2, 3)"}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { Placement::parse(text); }),
        AllOf(
            HasSubstr("'" + std::string(text) + "'"),
            HasSubstr("Write S(<dim>), S(<dim>, [<rows>, ...]), "),
            HasSubstr("R or P(sum|avg|min|max|product)")));
  }
}

TEST(Placement, CutsThatCannotBeAreRefused) {
  EXPECT_THROW(Shard(0, {}), c10::ValueError);
  EXPECT_THROW(Shard(0, {3, -1}), c10::ValueError);
  EXPECT_THROW(Placement::parse("S(0, [-1])"), c10::ValueError);
  EXPECT_THROW(StridedShard(0, 0), c10::ValueError);
  EXPECT_THROW(StridedShard(0, int64_t{1} << 31), c10::ValueError);
  EXPECT_THROW(Shard(int64_t{1} << 32), c10::ValueError);
}

TEST(Placement, KindsOfCut) {
  for (const auto& cut : {Shard(1), Shard(1, {2, 3}), StridedShard(1, 2)}) {
    EXPECT_TRUE(cut.is_shard());
    EXPECT_TRUE(cut.is_shard(1));
    EXPECT_FALSE(cut.is_shard(0));
    EXPECT_EQ(cut.with_tensor_dim(0).normalized(1).tensor_dim(), 0);
    EXPECT_EQ(cut.with_tensor_dim(0).shard_sizes(), cut.shard_sizes());
    EXPECT_EQ(cut.with_tensor_dim(0).split_factor(), cut.split_factor());
  }
  EXPECT_TRUE(Shard(1).is_chunked());
  EXPECT_FALSE(Shard(1, {2, 3}).is_chunked());
  EXPECT_FALSE(StridedShard(1, 2).is_chunked());
  EXPECT_NE(Shard(1), Shard(1, {2, 3}));
  EXPECT_NE(Shard(1, {3, 2}), Shard(1, {2, 3}));
  EXPECT_NE(StridedShard(1, 3), StridedShard(1, 2));
  EXPECT_EQ(Shard(1, {2, 3}), Shard(1, {2, 3}));
}

TEST(Placement, NegativeDimsCountFromTheEnd) {
  EXPECT_EQ(Shard(-1).normalized(3), Shard(2));
  EXPECT_EQ(Shard(-3).normalized(3), Shard(0));
  EXPECT_EQ(Replicate().normalized(0), Replicate());
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([] { Shard(-4).normalized(3); }),
      HasSubstr("S(-4) shards a dim that a tensor of 3 dims does not have"));
  EXPECT_THROW(Shard(0).normalized(0), c10::ValueError);
}

TEST(Placement, CodesAndHashesTellPlacementsApart) {
  std::set<int64_t> codes;
  std::unordered_set<Placement> placements;
  const std::vector<std::string> texts{
      "R",
      "S(0)",
      "S(1)",
      "S(-1)",
      "P(sum)",
      "P(avg)",
      "P(min)",
      "P(max)",
      "P(product)",
      "S(0, [1, 2])",
      "S(0, [2, 1])",
      "S(0, [0, 1, 2])",
      "S(1, [1, 2])",
      "_S(0, 1)",
      "_S(0, 2)",
      "_S(1, 2)",
      "_S(0, 2147483647)"};
  for (int twice = 0; twice < 2; ++twice) {
    for (const auto& text : texts) {
      codes.insert(Placement::parse(text).code());
      placements.insert(Placement::parse(text));
    }
  }
  EXPECT_EQ(codes.size(), texts.size());
  EXPECT_EQ(placements.size(), texts.size());
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

TEST(Spec, IsAValueToKeepInSets) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  std::unordered_set<DTensorSpec> specs;
  for (int twice = 0; twice < 2; ++twice) {
    for (const auto& placement :
         {Replicate(),
          Shard(0),
          Shard(0, {1, 2}),
          Shard(0, {2, 1}),
          StridedShard(0, 2),
          Partial()}) {
      specs.emplace(mesh, Placements{placement, Replicate()});
    }
  }
  EXPECT_EQ(specs.size(), 6U);
  EXPECT_TRUE(DTensorSpec(mesh, {Shard(0), Partial()}).is_chunked());
  EXPECT_FALSE(DTensorSpec(mesh, {Shard(0, {1, 2}), Partial()}).is_chunked());
  EXPECT_FALSE(DTensorSpec(mesh, {StridedShard(0, 2), Shard(0)}).is_chunked());
}

TEST(Spec, OnePlacementAMeshDim) {
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([] {
        DTensorSpec(fake_mesh(2, {2, 2}, {"dp", "tp"}), {Shard(0)});
      }),
      AllOf(
          HasSubstr("placements: got 1, [S(0)], expected 2"),
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
  // Every rank divides its term.
  EXPECT_EQ(
      plan_text(mesh, {Partial(ReduceOp::kAvg)}, {Partial()}),
      "tp P(avg)->P(sum)");
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

TEST(Plan, CutsAreUndoneAndMadeInTheirOrder) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  const Placements behind{StridedShard(0, 2), Shard(0)};
  EXPECT_EQ(
      plan_text(mesh, behind, {Replicate(), Replicate()}),
      "dp _S(0, 2)->R; tp S(0)->R");
  EXPECT_EQ(plan_text(mesh, behind, {Replicate(), Shard(0)}), "dp _S(0, 2)->R");
  EXPECT_EQ(
      plan_text(mesh, {Replicate(), Replicate()}, behind),
      "tp R->S(0); dp R->_S(0, 2)");
  EXPECT_EQ(
      plan_text(mesh, {Shard(0), Shard(0)}, behind),
      "tp S(0)->R; dp S(0)->R; tp R->S(0); dp R->_S(0, 2)");
  EXPECT_EQ(
      plan_text(mesh, {Partial(), Shard(0)}, behind), "dp P(sum)->_S(0, 2)");
  // Alone, the same placement is another cut.
  EXPECT_EQ(
      plan_text(mesh, {StridedShard(0, 2), Replicate()}, behind),
      "dp _S(0, 2)->R; tp R->S(0); dp R->_S(0, 2)");
}

TEST(Plan, RowsOfOneDimMoveAtOnceUnlessTheyAreStrided) {
  const auto mesh = fake_line(0, 2);
  EXPECT_EQ(
      plan_text(mesh, {Shard(0)}, {Shard(0, {1, 3})}), "tp S(0)->S(0, [1, 3])");
  EXPECT_EQ(
      plan_text(mesh, {StridedShard(0, 2)}, {Shard(1)}), "tp _S(0, 2)->S(1)");
  EXPECT_EQ(
      plan_text(mesh, {StridedShard(0, 2)}, {Shard(0)}),
      "tp _S(0, 2)->R; tp R->S(0)");
  const auto grid = fake_mesh(0, {2, 2}, {"dp", "tp"});
  // The inner cut only; what dp has stays.
  EXPECT_EQ(
      plan_text(grid, {Shard(0), Shard(0)}, {Shard(0), Shard(0, {1, 2})}),
      "tp S(0)->S(0, [1, 2])");
}

TEST(Plan, MeshDimsOfOneRankCostNothing) {
  const auto mesh = fake_mesh(0, {1, 2}, {"dp", "tp"});
  EXPECT_EQ(
      plan_text(mesh, {Shard(0), Shard(0)}, {Replicate(), Shard(0)}),
      "dp S(0)->R");
  EXPECT_EQ(
      plan_text(
          mesh, {Partial(), Shard(0)}, {Partial(ReduceOp::kMax), Shard(0)}),
      "dp P(sum)->P(max)");
}

TEST(Plan, ReductionsThatDoNotCommuteEndFromTheInnermost) {
  const auto mesh = fake_mesh(0, {2, 2}, {"dp", "tp"});
  const auto max = Partial(ReduceOp::kMax);
  EXPECT_EQ(
      plan_text(mesh, {Partial(), max}, {Replicate(), Replicate()}),
      "tp P(max)->R; dp P(sum)->R");
  EXPECT_EQ(
      plan_text(mesh, {Partial(), max}, {Shard(0), max}),
      "tp P(max)->R; dp P(sum)->S(0); tp R->P(max)");
  EXPECT_EQ(
      plan_text(mesh, {Partial(), max}, {Partial(), Shard(0)}),
      "tp P(max)->S(0)");
  EXPECT_EQ(
      plan_text(
          mesh, {Partial(), Partial(ReduceOp::kAvg)}, {Shard(0), Replicate()}),
      "dp P(sum)->S(0); tp P(avg)->R");
}

// Whatever a step does not name stays what it was, and the last step's state
// is the target.
TEST(Plan, EveryStepChangesOneCutAndNoOther) {
  const std::vector<Placement> kinds{
      Replicate(),
      Shard(0),
      Shard(1),
      Shard(0, {1, 1}),
      StridedShard(0, 2),
      StridedShard(0, 4),
      StridedShard(1, 2),
      Partial()};
  const auto mesh = fake_mesh(0, {2, 2, 2}, {"pp", "dp", "tp"});
  const auto list = [&](size_t code) {
    return Placements{kinds[code / 64], kinds[code / 8 % 8], kinds[code % 8]};
  };
  const auto others = [&](const Placements& placements, int64_t mesh_dim) {
    std::vector<DimShards> all;
    for (const int64_t d : {0, 1}) {
      all.push_back(dim_shards(placements, mesh.shape(), d));
      auto& cuts = all.back();
      if (!cuts.empty() && cuts.back().mesh_dim == mesh_dim) {
        cuts.pop_back();
      }
    }
    return all;
  };
  for (size_t a = 0; a < 512; a += 3) {
    for (size_t b = 0; b < 512; b += 5) {
      auto current = list(a);
      for (const auto& step : plan_redistribute(
               DTensorSpec(mesh, list(a)), DTensorSpec(mesh, list(b)))) {
        const auto before = others(current, step.mesh_dim);
        ASSERT_EQ(current[step.mesh_dim], step.from);
        current[step.mesh_dim] = step.to;
        ASSERT_EQ(before, others(current, step.mesh_dim))
            << to_string(list(a)) << " -> " << to_string(list(b)) << ": "
            << step.from.to_string() << " -> " << step.to.to_string();
      }
      ASSERT_EQ(current, list(b)) << to_string(list(a));
    }
  }
}

TEST(Cost, EqualCutsAreFreeAndOthersAreNot) {
  const double bytes = 1 << 20;
  const mesh::LinkCost link{.latency_us = 40, .bandwidth_gb_s = 1.5};
  const auto cost = [&](const Placement& from, const Placement& to, int64_t n) {
    return redistribute_cost(from, to, bytes, n, link);
  };
  for (const auto& cut : {Shard(0), Shard(0, {1, 3}), StridedShard(0, 2)}) {
    EXPECT_EQ(cost(cut, cut, 2), 0);
    EXPECT_GT(cost(cut, Shard(0, {2, 2}), 2), 0);
    EXPECT_GT(cost(cut, Shard(1), 2), 0);
    EXPECT_GT(cost(cut, Replicate(), 2), 0);
    EXPECT_LT(cost(Replicate(), cut, 2), cost(cut, Replicate(), 2));
  }
  // A Partial sum that is written to takes what is added to it.
  const double all_reduce = cost(Partial(), Replicate(), 2);
  EXPECT_LT(cost(Partial(ReduceOp::kAvg), Partial(), 2), all_reduce);
  EXPECT_GT(cost(Partial(ReduceOp::kMax), Partial(), 2), all_reduce);
  // Rows of one dim change ranks in one exchange, of ranges and of lists.
  EXPECT_EQ(
      cost(Shard(0), Shard(0, {1, 3}), 4),
      cost(Shard(0), StridedShard(0, 2), 4));
  EXPECT_LT(
      cost(Shard(0), StridedShard(0, 2), 4), cost(Shard(0), Replicate(), 4));
}

} // namespace
} // namespace weft::dtensor
