#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::cut_all;
using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::line;
using dtensor::test::local_of;
using dtensor::test::own_part;
using dtensor::test::random;
using dtensor::test::with_sizes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

// Every list of placements for a mesh of `ndim` dims.
std::vector<Placements> all_placements(
    int64_t ndim,
    const std::vector<Placement>& choices) {
  std::vector<Placements> lists{{}};
  for (int64_t d = 0; d < ndim; ++d) {
    std::vector<Placements> longer;
    for (const auto& list : lists) {
      for (const auto& choice : choices) {
        longer.push_back(list);
        longer.back().push_back(choice);
      }
    }
    lists = std::move(longer);
  }
  return lists;
}

bool has_gradient(const Placements& placements) {
  return std::ranges::none_of(placements, [](const auto& placement) {
    return placement.is_partial(ReduceOp::kMax) ||
           placement.is_partial(ReduceOp::kMin) ||
           placement.is_partial(ReduceOp::kProduct);
  });
}

void check_redistribution(
    const mesh::DeviceMesh& mesh,
    const at::Tensor& whole,
    const Placements& from,
    const Placements& to) {
  SCOPED_TRACE(to_string(from) + " -> " + to_string(to));
  const auto weights = random(whole.sizes(), 5);
  auto local = own_part(whole, from, mesh);
  local.requires_grad_();
  const auto sizes = whole.sizes().vec();
  const auto x = from_local(local, mesh, from, with_sizes(sizes));

  const auto y = redistribute(x, to);

  EXPECT_EQ(spec_of(y), fitted(DTensorSpec(mesh, to), sizes));
  EXPECT_EQ(
      local_of(y).sizes(), c10::IntArrayRef(local_sizes(spec_of(y), sizes)));
  if (!spec_of(y).has_partial()) {
    expect_close(local_of(y), own_part(whole, to, mesh), 1e-12, "this part");
  }
  const auto full = full_tensor(y);
  expect_close(full, whole, 1e-12, "the whole");
  (full * weights).sum().backward();
  if (!has_gradient(from)) {
    return;
  }
  auto expected =
      own_part(weights, spec_of(x).without_partial().placements(), mesh);
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if (from[d].is_partial(ReduceOp::kAvg)) {
      expected = expected / mesh.size(d);
    }
  }
  expect_close(local.grad(), expected, 1e-12, "gradient");
}

// Rows that are far from even: nothing on the first rank, most on the last.
std::vector<int64_t> lopsided(int64_t size, int64_t shards) {
  std::vector<int64_t> rows(shards, 0);
  for (int64_t r = 1; r < shards; ++r) {
    rows[r] = std::min<int64_t>(r - 1, size);
    size -= rows[r];
  }
  rows.back() += size;
  return rows;
}

TEST(Redistribute, EveryPlacementToEveryOtherOnOneMeshDim) {
  for (const int n : {1, 2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {12, 4}, {8, 2}, {5, 3}, {1, 3}, {0, 2}}) {
        const auto whole = random(sizes, 1);
        const std::vector<Placement> targets{
            Replicate(),
            Shard(0),
            Shard(1),
            Shard(0, lopsided(sizes[0], n)),
            StridedShard(0, 2),
            StridedShard(0, 3),
            StridedShard(1, 2),
            Partial(),
            Partial(ReduceOp::kAvg),
            Partial(ReduceOp::kMin),
            Partial(ReduceOp::kMax)};
        auto sources = targets;
        sources.push_back(Partial(ReduceOp::kProduct));
        for (const auto& from : sources) {
          for (const auto& to : targets) {
            check_redistribution(mesh, whole, {from}, {to});
          }
        }
      }
    });
  }
}

TEST(Redistribute, EveryPlacementToEveryOtherOnTwoMeshDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const std::vector<Placement> choices{
        Replicate(), Shard(0), Shard(1), Partial()};
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{8, 4}, {5, 3}, {1, 3}}) {
      const auto whole = random(sizes, 1);
      for (const auto& from : all_placements(2, choices)) {
        for (const auto& to : all_placements(2, choices)) {
          check_redistribution(mesh, whole, from, to);
        }
      }
    }
  });
}

TEST(Redistribute, EveryCutOfOneDimToEveryOtherOnTwoMeshDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const int64_t rows : {5, 8, 1, 0}) {
      const auto whole = random({rows, 2}, 1);
      const auto given = Shard(0, {rows / 4, rows - rows / 4});
      const std::vector<Placements> lists{
          {Replicate(), Partial()},
          {Shard(0), Shard(0)},
          {Shard(1), Shard(0)},
          {Replicate(), StridedShard(0, 3)},
          {given, Replicate()},
          {Shard(1), given},
          {given, Shard(0)},
          {given, StridedShard(0, 2)},
          {StridedShard(0, 2), Shard(0)},
          {StridedShard(0, 2), given},
          {StridedShard(0, 2), Partial()},
          {StridedShard(0, 2), StridedShard(0, 2)},
          {StridedShard(0, 4), Shard(0)},
          {Partial(ReduceOp::kMin), StridedShard(0, 2)}};
      for (const auto& from : lists) {
        for (const auto& to : lists) {
          check_redistribution(mesh, whole, from, to);
        }
      }
    }
  });
}

TEST(Redistribute, ReductionsThatDoNotCommuteEndFromTheInnermost) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const Placements from{Partial(), Partial(ReduceOp::kMax)};
    const auto whole = random({6, 2}, 1);
    const auto local = own_part(whole, from, mesh);
    for (const auto& to : std::vector<Placements>{
             {Replicate(), Replicate()},
             {Shard(0), Partial(ReduceOp::kMax)},
             {Shard(0), Shard(0)},
             {Partial(), Shard(1)},
             {Replicate(), Partial()}}) {
      const DTensorSpec source(mesh, from);
      const DTensorSpec target(mesh, to);
      const auto moved =
          redistribute_local(local, whole.sizes(), source, target, "test");
      const auto y =
          make_dtensor(moved, target, whole.sizes(), whole.strides());
      expect_close(full_tensor(y), whole, 1e-12, to_string(to));
    }
  });
}

TEST(Redistribute, PendingReductionsOfOtherDtypes) {
  for (const int n : {2, 3}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      const auto mine = [&](at::ScalarType dtype) {
        return random({5, 2}, self.rank + 1).mul(4).to(dtype);
      };
      for (const auto dtype : {at::kLong, at::kInt, at::kBFloat16, at::kHalf}) {
        for (const auto op :
             {ReduceOp::kSum,
              ReduceOp::kMin,
              ReduceOp::kMax,
              ReduceOp::kProduct}) {
          SCOPED_TRACE(c10::str(dtype, " ", to_string(op)));
          const auto wide = at::isFloatingType(dtype) ? at::kFloat : dtype;
          auto expected = random({5, 2}, 1).mul(4).to(dtype).to(wide);
          for (int64_t r = 1; r < n; ++r) {
            const auto other = random({5, 2}, r + 1).mul(4).to(dtype).to(wide);
            expected = op == ReduceOp::kSum   ? expected + other
                       : op == ReduceOp::kMin ? at::minimum(expected, other)
                       : op == ReduceOp::kMax ? at::maximum(expected, other)
                                              : expected * other;
          }
          const auto x = from_local(mine(dtype), mesh, {Partial(op)});
          for (const auto& to :
               {Replicate(),
                Shard(0),
                Shard(1),
                StridedShard(0, 2),
                Shard(0, lopsided(5, n))}) {
            const auto y = redistribute(x, {to});
            EXPECT_EQ(y.scalar_type(), dtype);
            EXPECT_TRUE(at::equal(full_tensor(y), expected.to(dtype)))
                << to.to_string();
          }
        }
      }
    });
  }
}

TEST(Redistribute, AveragesOfIntegersAreRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto average = Partial(ReduceOp::kAvg);
    const auto x = from_local(at::ones({4}, at::kLong), mesh, {average});
    for (const auto& to : {Replicate(), Shard(0), StridedShard(0, 2)}) {
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>([&] { redistribute(x, {to}); }),
          HasSubstr("average of Long is not defined"));
    }
    const auto whole = distributed(at::ones({4}, at::kLong), mesh, {Shard(0)});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { redistribute(whole, {average}); }),
        HasSubstr("R to P(avg) of Long"));
  });
}

TEST(Redistribute, FromRToPendingReductionsKeepsTheValuesWhereTheyAre) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({3}, 1);
    const auto x = distributed(whole, mesh, {Replicate()});
    for (const auto op : {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      EXPECT_TRUE(at::equal(local_of(redistribute(x, {Partial(op)})), whole));
    }
    const auto sum = local_of(redistribute(x, {Partial()}));
    EXPECT_TRUE(at::equal(sum, self.rank == 0 ? whole : at::zeros_like(whole)));
  });
}

TEST(Redistribute, CutsThatDoNotFitAreRefusedOnEveryRank) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(at::ones({5, 2}), mesh, {Replicate()});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          redistribute(x, {Shard(0, {1, 2, 3})});
        }),
        AllOf(
            HasSubstr("rows of S(0, [1, 2, 3]) on mesh dim \"tp\""),
            HasSubstr("6 vs 5 of a tensor of sizes [5, 2]"),
            HasSubstr(c10::str("rank ", self.rank, "/3"))));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          redistribute(x, {Shard(0, {2, 3})});
        }),
        HasSubstr("2 vs 3. Give one number per rank"));
  });
}

TEST(Redistribute, EachMoveIsOneCollective) {
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      auto& flight_recorder = mesh.group(0).flight_recorder();
      const auto whole = random({12, 24}, 1);
      const auto counts = [&](Placement from, Placement to) {
        const auto x = from_local(
            cut_all(whole, {from}, mesh.shape())[self.rank],
            mesh,
            {from},
            with_sizes({12, 24}));
        flight_recorder.reset();
        redistribute(x, {to});
        return flight_recorder.counts();
      };
      EXPECT_THAT(counts(Replicate(), Shard(0)), IsEmpty());
      EXPECT_THAT(counts(Replicate(), Partial()), IsEmpty());
      EXPECT_THAT(
          counts(Shard(0), Replicate()), ElementsAre(Pair("all_gather", 1)));
      EXPECT_THAT(
          counts(Shard(1), Replicate()), ElementsAre(Pair("all_gather", 1)));
      EXPECT_THAT(
          counts(Partial(), Replicate()), ElementsAre(Pair("all_reduce", 1)));
      EXPECT_THAT(
          counts(Partial(), Shard(0)), ElementsAre(Pair("reduce_scatter", 1)));
      EXPECT_THAT(
          counts(Partial(), Shard(1)),
          ElementsAre(Pair(::testing::StartsWith("reduce_scatter"), 1)));
      EXPECT_THAT(
          counts(Shard(0), Shard(1)), ElementsAre(Pair("all_to_all", 1)));
      const auto given = Shard(0, lopsided(12, n));
      const auto strided = StridedShard(0, 3);
      EXPECT_THAT(counts(Shard(0), given), ElementsAre(Pair("all_to_all", 1)));
      EXPECT_THAT(counts(given, Shard(1)), ElementsAre(Pair("all_to_all", 1)));
      EXPECT_THAT(
          counts(strided, Shard(1)), ElementsAre(Pair("all_to_all", 1)));
      EXPECT_THAT(
          counts(given, Replicate()),
          ElementsAre(Pair("all_gather_uneven", 1)));
      EXPECT_THAT(
          counts(strided, Replicate()),
          ElementsAre(Pair(::testing::StartsWith("all_gather"), 1)));
      EXPECT_THAT(counts(Partial(ReduceOp::kAvg), Partial()), IsEmpty());
      EXPECT_THAT(
          counts(Partial(), strided),
          ElementsAre(Pair("reduce_scatter_uneven", 1)));
      EXPECT_THAT(counts(Replicate(), strided), IsEmpty());
      EXPECT_THAT(counts(strided, Partial()), IsEmpty());
    });
  }
}

TEST(Redistribute, OtherDtypesAndLayouts) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    for (const auto dtype :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
      const auto whole = random({5, 4}, 1).mul(3).to(dtype).t();
      const auto x = distributed(whole, mesh, {Shard(1)});
      EXPECT_EQ(x.strides(), whole.strides());
      EXPECT_TRUE(at::equal(full_tensor(x), whole));
      EXPECT_TRUE(at::equal(full_tensor(redistribute(x, {Shard(0)})), whole));
      for (const auto& to : {StridedShard(1, 2), Shard(1, {0, 4, 1})}) {
        EXPECT_TRUE(at::equal(full_tensor(redistribute(x, {to})), whole));
      }
    }
  });
}

TEST(Redistribute, ResultsShareNoMemory) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(at::ones({4}), mesh, {Replicate()});
    for (const auto& to :
         {Shard(0),
          Shard(0, {4, 0}),
          StridedShard(0, 2),
          Partial(),
          Partial(ReduceOp::kAvg)}) {
      redistribute(x, {to}).zero_();
      EXPECT_TRUE(at::equal(local_of(x), at::ones({4}))) << to.to_string();
    }
  });
}

TEST(Redistribute, SecondDerivative) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    for (const auto& cut : {Shard(0), Shard(0, {1, 4}), StridedShard(0, 2)}) {
      const auto whole = random({5}, 1).requires_grad_();
      const auto x = distributed(whole, mesh, {cut});
      const auto y = full_tensor(x).pow(3).sum();
      const auto grad = torch::autograd::grad({y}, {x}, {}, true, true)[0];
      full_tensor(grad).pow(2).sum().backward();
      // d/dx (3 x^2)^2 = 36 x^3.
      expect_close(
          full_tensor(x.grad()),
          whole.detach().pow(3).mul(36),
          1e-12,
          "second derivative");
    }
  });
}

TEST(Redistribute, BadTargetsAreRefused) {
  const auto x = distributed(at::ones({4, 2}), fake_line(0, 2), {Replicate()});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { redistribute(x, {Shard(2)}); }),
      HasSubstr("S(2) shards a dim that a tensor of 2 dims does not have"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        redistribute(x, {Shard(0), Shard(1)});
      }),
      HasSubstr("placements: got 2, [S(0), S(1)], expected 1"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { redistribute(x, {Partial(ReduceOp::kProduct)}); }),
      HasSubstr("P(product) has no exact form"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        redistribute(at::ones({2, 3}), {Shard(0)});
      }),
      AllOf(
          HasSubstr("plain tensor of sizes [2, 3]"),
          HasSubstr("distribute_tensor()")));
}

} // namespace
} // namespace weft::dtensor
