#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/deferred_init.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/redistribute.h"
#include "mesh/ledger.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::cut_all;
using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

at::Tensor local_of(const at::Tensor& dtensor) {
  return dtensor_impl(dtensor)->local();
}

mesh::DeviceMesh line(const RankContext& self) {
  return self.mesh({self.world_size}, {"tp"});
}

FromLocalOptions with_sizes(std::vector<int64_t> sizes) {
  FromLocalOptions options;
  options.sizes = std::move(sizes);
  return options;
}

FromLocalOptions checked() {
  FromLocalOptions options;
  options.run_check = true;
  return options;
}

FromLocalOptions with_gradient(Placements placements) {
  FromLocalOptions options;
  options.grad_placements = std::move(placements);
  return options;
}

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

// This rank's part of `whole`.
at::Tensor own_part(
    const at::Tensor& whole,
    const Placements& placements,
    const mesh::DeviceMesh& mesh) {
  return cut_all(whole, placements, mesh.shape())[mesh.rank()];
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
        HasSubstr("2 vs 3. Give one number a rank"));
  });
}

TEST(Redistribute, EachMoveIsOneCollective) {
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      auto& ledger = mesh.group(0).ledger();
      const auto whole = random({12, 24}, 1);
      const auto counts = [&](Placement from, Placement to) {
        const auto x = from_local(
            cut_all(whole, {from}, mesh.shape())[self.rank],
            mesh,
            {from},
            with_sizes({12, 24}));
        ledger.reset();
        redistribute(x, {to});
        return ledger.counts();
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
      HasSubstr("S(2) cuts a dim that a tensor of 2 dims does not have"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        redistribute(x, {Shard(0), Shard(1)});
      }),
      HasSubstr("2 vs 1"));
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

// ---- making DTensors and taking them apart ---------------------------------

TEST(FromLocal, PartsOfEqualSizeNeedNoSizes) {
  const auto mesh = fake_line(1, 3);
  const auto x = from_local(at::ones({2, 4}), mesh, {Shard(-1)});
  EXPECT_THAT(x.sizes(), ElementsAre(2, 12));
  EXPECT_THAT(x.strides(), ElementsAre(12, 1));
  EXPECT_EQ(spec_of(x).placements(), Placements{Shard(1)});
  const auto transposed = from_local(at::ones({4, 2}).t(), mesh, {Shard(0)});
  EXPECT_THAT(transposed.strides(), ElementsAre(1, 6));
  EXPECT_EQ(describe(x), "DTensor [2, 12] Float [S(1)] on tp=3, local [2, 4]");
}

TEST(FromLocal, WrongPartsAreRefused) {
  const auto mesh = fake_line(1, 2);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        from_local(at::ones({3, 4}), mesh, {Shard(0)}, with_sizes({5, 4}));
      }),
      AllOf(
          HasSubstr("[3, 4] vs [2, 4]"),
          HasSubstr("global [5, 4] under [S(0)]"),
          HasSubstr("rank 1/2, mesh tp=2")));
  const auto x = from_local(at::ones({2}), mesh, {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { from_local(x, mesh, {Shard(0)}); }),
      HasSubstr("is a DTensor already: DTensor [4] Float [S(0)]"));
}

TEST(FromLocal, RunCheckComparesAllRanks) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto rows = self.rank == 1 ? 3 : 2;
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          from_local(at::ones({rows, 4}), mesh, {Shard(0)}, checked());
        }),
        HasSubstr("parts of different sizes or dtypes"));
    const auto x = from_local(at::ones({2, 4}), mesh, {Shard(0)}, checked());
    EXPECT_THAT(x.sizes(), ElementsAre(6, 4));
  });
}

TEST(FromLocal, SizesOfGivenShardsNeedNoOthers) {
  const auto mesh = fake_line(1, 3);
  const auto x = from_local(at::ones({4, 2}), mesh, {Shard(0, {0, 4, 1})});
  EXPECT_THAT(x.sizes(), ElementsAre(5, 2));
  EXPECT_EQ(
      describe(x),
      "DTensor [5, 2] Float [S(0, [0, 4, 1])] on tp=3, local [4, 2]");
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        from_local(at::ones({3, 2}), mesh, {Shard(0, {0, 4, 1})});
      }),
      HasSubstr("[3, 2] vs [4, 2]"));
  const auto strided = from_local(
      at::ones({2, 2}), mesh, {StridedShard(0, 2)}, with_sizes({5, 2}));
  EXPECT_THAT(strided.sizes(), ElementsAre(5, 2));
}

TEST(FromLocal, ReductionsThatDoNotCommuteAreRefused) {
  const auto mesh = dtensor::test::fake_mesh(0, {2, 2}, {"dp", "tp"});
  const Placements mixed{Partial(), Partial(ReduceOp::kMax)};
  const auto x = at::ones({2});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { from_local(x, mesh, mixed); }),
      HasSubstr("P(sum) vs P(max)"));
  EXPECT_THROW(
      distribute_tensor(x, mesh, mixed, std::nullopt), c10::ValueError);
  EXPECT_THROW(
      redistribute(from_local(x, mesh, {Replicate(), Replicate()}), mixed),
      c10::ValueError);
  EXPECT_NO_THROW(from_local(x, mesh, {Partial(), Partial(ReduceOp::kAvg)}));
}

// Whatever one rank does otherwise, all of them say so, and name it.
TEST(FromLocal, RunCheckFindsWhatOneRankDoesOtherwise) {
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      const bool odd = self.rank == n - 1;
      const auto expect_refused = [&](const at::Tensor& local,
                                      const Placements& placements,
                                      FromLocalOptions options,
                                      const std::string& text) {
        options.run_check = true;
        EXPECT_THAT(
            message_of_thrown<c10::ValueError>(
                [&] { from_local(local, mesh, placements, options); }),
            AllOf(
                HasSubstr("[from_local]"),
                HasSubstr(c10::str("rank ", n - 1, " ")),
                HasSubstr(text),
                HasSubstr(c10::str("rank ", self.rank, "/", n))));
      };
      const Placements cut{Shard(1)};
      expect_refused(odd ? at::ones({4}) : at::ones({4, 2}), cut, {}, "1 dims");
      expect_refused(
          odd ? at::ones({4, 2}, at::kDouble) : at::ones({4, 2}),
          cut,
          {},
          "Double");
      expect_refused(
          at::ones({2, 2}),
          {odd ? Shard(0) : Shard(1)},
          {},
          "has Float on cpu of 2 dims under [S(0)]");
      expect_refused(
          at::ones({2, 2}),
          cut,
          with_sizes(
              odd ? std::vector<int64_t>{2, 2 * n + 1}
                  : std::vector<int64_t>{2, 2 * n}),
          c10::str("global sizes [2, ", 2 * n + 1));
      expect_refused(
          at::ones({2, odd ? 7 : 2}), cut, with_sizes({2, 2 * n}), "[2, 7] vs");
      expect_refused(
          at::ones({2}),
          {Replicate()},
          odd ? with_gradient({Partial()}) : FromLocalOptions(),
          "gradient [P(sum)]");
      expect_refused(
          odd ? at::Tensor() : at::ones({2}), cut, {}, "an undefined tensor");
      expect_refused(
          odd ? distributed(at::ones({2}), mesh, {Replicate()}) : at::ones({2}),
          {Replicate()},
          {},
          "a DTensor");
      expect_refused(
          at::full({3}, odd ? 2.0 : 1.0),
          {Replicate()},
          {},
          "holds other values than the first rank of mesh dim \"tp\"");
    });
  }
}

TEST(FromLocal, RunCheckLetsTrueParts) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    auto options = with_sizes({5, 3});
    options.run_check = true;
    const auto whole = random({5, 3}, 1).log();
    for (const auto& placements : std::vector<Placements>{
             {Shard(0), Shard(0)},
             {Replicate(), Shard(0)},
             {Shard(0, {1, 4}), Replicate()},
             {StridedShard(0, 2), Shard(0)},
             {Replicate(), Replicate()},
             {Shard(1), Partial()}}) {
      const auto x = from_local(
          own_part(whole, placements, mesh), mesh, placements, options);
      EXPECT_THAT(x.sizes(), ElementsAre(5, 3));
    }
    // Replicas that differ along one mesh dim only.
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          from_local(
              at::full({2}, static_cast<double>(mesh.coordinate("tp"))),
              mesh,
              {Replicate(), Replicate()},
              checked());
        }),
        HasSubstr("rank 1 holds other values than the first rank of mesh dim "
                  "\"tp\""));
  });
}

TEST(FromLocal, GradientComesBackWhereAsked) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto local = at::ones({4}, at::kDouble).requires_grad_();
    const auto x =
        from_local(local, mesh, {Replicate()}, with_gradient({Partial()}));
    const auto weights = random({4}, 1);
    (full_tensor(x) * weights).sum().backward();
    auto sum = local.grad().clone();
    mesh.group(0).all_reduce(sum).wait();
    expect_close(sum, weights, 1e-12, "gradients add up");
  });
}

TEST(ToLocal, SharesMemoryAndCarriesGradients) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({5, 2}, 1).requires_grad_();
    const auto x = distributed(whole, mesh, {Shard(0)});
    const auto local = to_local(x);
    EXPECT_TRUE(local.is_alias_of(local_of(x)));
    const auto weights =
        random({5, 2}, 2).narrow(0, self.rank * 3, 3 - self.rank);
    (local * weights).sum().backward();
    expect_close(full_tensor(x.grad()), random({5, 2}, 2), 1e-12, "gradient");
  });
}

TEST(ToLocal, PartialGradientsAreAddedUp) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({4}, 1).requires_grad_();
    const auto x = distributed(whole, mesh, {Replicate()});
    (to_local(x, Placements{Partial()}) * (self.rank + 1.0)).sum().backward();
    EXPECT_TRUE(spec_of(x.grad()).is_replicated());
    expect_close(
        full_tensor(x.grad()), at::full({4}, 6.0, at::kDouble), 1e-12, "grad");
  });
}

TEST(DistributeTensor, TakesOneRanksValues) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto mine = random({5, 2}, self.rank);
    expect_close(
        full_tensor(distribute_tensor(mine, mesh, {Shard(0)})),
        random({5, 2}, 0),
        0,
        "rank 0's");
    expect_close(
        full_tensor(distribute_tensor(mine, mesh, {Shard(1)}, 2)),
        random({5, 2}, 2),
        0,
        "rank 2's");
  });
}

TEST(DistributeTensor, AnyPlacementOfAnyRanksValues) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const Placement given = Shard(0, {1, 4});
    for (const auto& placements : std::vector<Placements>{
             {Replicate(), Replicate()},
             {given, Shard(1)},
             {given, Shard(0)},
             {StridedShard(0, 2), given},
             {StridedShard(0, 3), Replicate()},
             {Partial(), Shard(0)},
             {Partial(), Partial(ReduceOp::kAvg)},
             {Partial(ReduceOp::kMax), Replicate()}}) {
      for (const int64_t src : {0, 1}) {
        const auto x =
            distribute_tensor(random({5, 2}, self.rank), mesh, placements, src);
        EXPECT_TRUE(at::equal(full_tensor(x), random({5, 2}, src * 3)))
            << to_string(placements);
      }
    }
    const auto empty =
        distribute_tensor(at::ones({0, 2}), mesh, {Shard(0), Shard(1)});
    EXPECT_THAT(full_tensor(empty).sizes(), ElementsAre(0, 2));
    EXPECT_THAT(local_of(empty).sizes(), ElementsAre(0, 1));
  });
}

TEST(DistributeTensor, IsRefusedBeforeAnythingIsSent) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = at::ones({5});
    mesh.group(0).ledger().reset();
    const auto message = [&](const Placement& placement,
                             std::optional<int64_t> src) {
      return message_of_thrown<c10::ValueError>(
          [&] { distribute_tensor(x, mesh, {placement}, src); });
    };
    EXPECT_THAT(
        message(Shard(0), 2),
        AllOf(HasSubstr("mesh dim \"tp\": 2 vs 2"), HasSubstr("rank")));
    EXPECT_THAT(message(Shard(0), -1), HasSubstr("-1 vs 2"));
    EXPECT_THAT(message(Shard(1), 0), HasSubstr("1 dims does not have"));
    EXPECT_THAT(message(Shard(0, {2, 2}), 0), HasSubstr("4 vs 5"));
    EXPECT_THAT(
        message(Partial(ReduceOp::kProduct), 0), HasSubstr("no exact form"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          distribute_tensor(
              x.to(at::kLong), mesh, {Partial(ReduceOp::kAvg)}, 0);
        }),
        HasSubstr("P(avg) of Long"));
    const auto placed = distributed(x, mesh, {Shard(0)});
    EXPECT_TRUE(distribute_tensor(placed, mesh, {Shard(-1)}).is_same(placed));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { distribute_tensor(placed, mesh, {Replicate()}); }),
        HasSubstr("is a DTensor already"));
    EXPECT_THAT(mesh.group(0).ledger().counts(), IsEmpty());
  });
}

TEST(DistributeTensor, KeepsOnlyItsPart) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = at::ones({8, 4});
    for (const auto src :
         {std::optional<int64_t>(0), std::optional<int64_t>()}) {
      const auto x = distribute_tensor(whole, mesh, {Shard(0)}, src);
      EXPECT_EQ(local_of(x).storage().nbytes(), 4 * 4 * sizeof(float));
      x.zero_();
      EXPECT_EQ(whole.sum().item<float>(), 32);
    }
    auto leaf = at::ones({3}).requires_grad_();
    EXPECT_TRUE(distributed(leaf, mesh, {Shard(0)}).requires_grad());
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { distributed(leaf * 2, mesh, {Shard(0)}); }),
        HasSubstr("not a leaf"));
    EXPECT_EQ(
        distributed(at::full({}, 3.0), mesh, {Replicate()}).item<float>(), 3);
  });
}

// ---- gradients that share memory -------------------------------------------

TEST(SharedGradients, LeavesOfOneRegionKeepTheirOwn) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto weights = random({4}, 5);
    const auto leaf = [&] {
      return distributed(random({4}, 1).requires_grad_(), mesh, {Replicate()});
    };
    const auto a = leaf();
    const auto b = leaf();
    ((to_local(a) + to_local(b)) * weights).sum().backward();
    {
      const at::NoGradGuard no_grad;
      a.grad().mul_(2);
    }
    expect_close(local_of(b.grad()), weights, 1e-12, "b's gradient");
    expect_close(local_of(a.grad()), weights * 2, 1e-12, "a's gradient");
  });
}

TEST(SharedGradients, SlicesOfAReplicatedGradientAreCopies) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto weights = random({4}, 5);
    const auto x =
        distributed(random({4}, 1).requires_grad_(), mesh, {Shard(0)});
    const auto z =
        distributed(random({4}, 2).requires_grad_(), mesh, {Replicate()});
    const auto y = redistribute(x, {Replicate()}) + z;
    // x has another use, so that autograd adds up two gradients of it.
    const auto loss = (full_tensor(y) * weights).sum() +
                      (full_tensor(x * 2.0) * weights).sum();
    loss.backward();
    expect_close(full_tensor(x.grad()), weights * 3, 1e-12, "x");
    expect_close(full_tensor(z.grad()), weights, 1e-12, "z");
    {
      const at::NoGradGuard no_grad;
      x.grad().zero_();
    }
    expect_close(full_tensor(z.grad()), weights, 1e-12, "z after x");
  });
}

TEST(SharedGradients, ALeafPartBesideADTensorLeaf) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto weights = random({4}, 5);
    auto local = random({4}, 1).requires_grad_();
    const auto z =
        distributed(random({4}, 2).requires_grad_(), mesh, {Replicate()});
    const auto y = from_local(local, mesh, {Replicate()}) + z;
    (full_tensor(y) * weights).sum().backward();
    local.grad().zero_();
    expect_close(full_tensor(z.grad()), weights, 1e-12, "z");
  });
}

TEST(SharedGradients, SumOfALocalPartLeavesAGradientToWriteTo) {
  const auto mesh = fake_line(0, 1);
  const auto x =
      distributed(at::ones({3, 2}).requires_grad_(), mesh, {Shard(0)});
  to_local(x).sum().backward();
  const at::NoGradGuard no_grad;
  x.grad().mul_(2);
  EXPECT_TRUE(at::equal(local_of(x.grad()), at::full({3, 2}, 2.0f)));
}

// ---- ops that are refused, and say why -------------------------------------

TEST(Refusal, PlainTensorsDoNotMixWithDTensors) {
  const auto x = distributed(at::ones({4, 2}), fake_line(1, 2), {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        x + at::ones({4, 2});
      }),
      AllOf(
          HasSubstr("[aten::add]"),
          HasSubstr("plain tensor of sizes [4, 2]"),
          HasSubstr("[4, 2] [S(0)]"),
          HasSubstr("distribute_tensor()"),
          HasSubstr("rank 1/2, mesh tp=2")));
  // Numbers are no tensors, and 0-dim tensors count as numbers.
  EXPECT_THAT((x + 1).sizes(), ElementsAre(4, 2));
  EXPECT_THAT((x * at::full({}, 2.0)).sizes(), ElementsAre(4, 2));
}

TEST(Refusal, AnOpWithoutARuleNamesItselfAndThePlacements) {
  const auto x = distributed(at::ones({4, 4}), fake_line(0, 2), {Shard(1)});
  EXPECT_THAT(
      message_of_thrown<c10::NotImplementedError>([&] { at::roll(x, 1, 0); }),
      AllOf(
          HasSubstr("[aten::roll] has no sharding rule"),
          HasSubstr("[4, 4] [S(1)]"),
          HasSubstr("to_local() and from_local()")));
}

TEST(Refusal, AWriteToAPendingSum) {
  const auto x = from_local(at::ones({2}), fake_line(0, 2), {Partial()});
  for (const auto& write : std::vector<std::function<void()>>{
           [&] { x.add_(1); }, [&] { x.relu_(); }, [&] { x.fill_(1); }}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(write),
        AllOf(
            HasSubstr("cannot write to its tensor where it lies"),
            HasSubstr("[P(sum)]"),
            HasSubstr("\"tp\"")));
  }
  x.mul_(2);
  x.neg_();
  EXPECT_TRUE(at::equal(local_of(x), at::full({2}, -2.0f)));
}

TEST(Refusal, AWriteThatWouldNotReachItsTensor) {
  const auto x = distributed(at::ones({4, 2}), fake_line(0, 2), {Shard(0)});
  const auto row = x.select(0, 0);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { row.zero_(); }),
      AllOf(
          HasSubstr("a view that had to be communicated and is a copy"),
          HasSubstr("rank 0/2")));
  x.select(1, 0).zero_();
  EXPECT_EQ(local_of(x).sum().item<float>(), 2);
  row.clone().zero_();
}

TEST(Refusal, ChangingSizesInPlace) {
  const auto x = distributed(at::ones({4, 2}), fake_line(0, 2), {Shard(0)});
  for (const auto& change : std::vector<std::function<void()>>{
           [&] { x.unsqueeze_(0); }, [&] { x.t_(); }, [&] { x.squeeze_(); }}) {
    EXPECT_THROW(change(), c10::NotImplementedError);
    EXPECT_THAT(x.sizes(), ElementsAre(4, 2));
    EXPECT_THAT(local_of(x).sizes(), ElementsAre(2, 2));
  }
}

TEST(Refusal, OutTensorsOfOtherSizes) {
  const auto mesh = fake_line(0, 2);
  const auto x = distributed(at::ones({4, 2}), mesh, {Shard(0)});
  auto out = distributed(at::zeros({4, 2}), mesh, {Shard(0)});
  at::add_out(out, x, x);
  EXPECT_TRUE(at::equal(local_of(out), at::full({2, 2}, 2.0f)));
  auto wrong = distributed(at::zeros({2}), mesh, {Shard(0)});
  EXPECT_THROW(at::add_out(wrong, x, x), c10::ValueError);
  EXPECT_THROW(at::sum_out(wrong, x, 0), c10::ValueError);
}

TEST(Refusal, TwoMeshes) {
  const auto x = distributed(at::ones({4}), fake_line(0, 2), {Shard(0)});
  const auto y = distributed(at::ones({4}), fake_line(0, 2), {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { x + y; }),
      HasSubstr("[aten::add] mixes meshes: tp=2 vs tp=2"));
}

TEST(Item, IsKnownWhereTheValueIsWhole) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto sum = from_local(
        at::full({}, self.rank + 1.0, at::kDouble), mesh, {Partial()});
    EXPECT_EQ(sum.item<double>(), 6);
    const auto x = distributed(at::ones({3}), mesh, {Shard(0)});
    EXPECT_EQ(x.sum().item<double>(), 3);
    EXPECT_EQ(x.mean().item<double>(), 1);
    const auto one = distributed(at::ones({1}), mesh, {Shard(0)});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { one.item(); }),
        AllOf(HasSubstr("is cut"), HasSubstr("full_tensor(x).item()")));
    EXPECT_TRUE(at::equal(x, distributed(at::ones({3}), mesh, {Replicate()})));
    EXPECT_FALSE(at::equal(
        x, distributed(random({3}, 1).to(at::kFloat), mesh, {Replicate()})));
  });
}

TEST(Data, HasNoPointerButAMessage) {
  const auto x = distributed(at::ones({4}), fake_line(0, 2), {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::Error>([&] { x.data_ptr<float>(); }),
      HasSubstr("to_local"));
}

TEST(Norm, OfCutTensorsIsTheWholes) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({5, 4}, 1);
    for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
      const auto leaf = whole.clone().requires_grad_();
      const auto x = distributed(leaf, mesh, {placement});
      for (const double order : {0.0, 1.0, 2.0, 3.0}) {
        EXPECT_NEAR(
            x.norm(order).item<double>(),
            whole.norm(order).item<double>(),
            1e-12);
      }
      const double infinity = std::numeric_limits<double>::infinity();
      EXPECT_EQ(
          at::linalg_vector_norm(x, infinity).item<double>(),
          whole.abs().max().item<double>());
      expect_close(
          full_tensor(x.norm(2, 1, true)),
          whole.norm(2, 1, true),
          1e-12,
          "row");
      expect_close(
          full_tensor(at::linalg_vector_norm(x, 2, 0)),
          whole.norm(2, 0),
          1e-12,
          "column");
      x.norm().backward();
      expect_close(
          full_tensor(x.grad()), whole / whole.norm(), 1e-12, "gradient");
    }
  });
}

// ---- ordinary code on DTensors ---------------------------------------------

TEST(Ops, SetDataAndModuleConversionReachTheLocalTensor) {
  const auto mesh = fake_line(0, 2);
  auto x = distributed(at::ones({4}), mesh, {Shard(0)});
  x.set_data(distributed(at::zeros({4}), mesh, {Shard(0)}));
  EXPECT_TRUE(at::equal(local_of(x), at::zeros({2})));
  torch::nn::Linear linear{nullptr};
  {
    const DeferredInit scope;
    linear = torch::nn::Linear(2, 4);
  }
  for (const auto& parameter : linear->parameters()) {
    set_placements(parameter, mesh, {Shard(0)});
  }
  materialize(*linear, 1);
  linear->to(at::kBFloat16);
  EXPECT_EQ(linear->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(local_of(linear->weight).scalar_type(), at::kBFloat16);
  EXPECT_EQ(local_of(linear->bias).size(0), 2);
}

TEST(Ops, AnUnplacedTensorCountsAsReplicated) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({4, 2}, 1);
    const auto unplaced =
        make_dtensor(whole.clone(), DTensorSpec(), {4, 2}, {2, 1});
    const auto x = distributed(whole, mesh, {Shard(0)});
    const auto y = x * unplaced;
    EXPECT_EQ(spec_of(y).placements(), Placements{Shard(0)});
    expect_close(full_tensor(y), whole * whole, 1e-12, "product");
  });
}

// A small function of many ops and its gradient, cut in every way.
TEST(Ops, AChainOfOpsAndItsGradientEqualOneRank) {
  const auto chain = [](const at::Tensor& x) {
    auto y = x.transpose(0, 1).reshape({6, 2, 2}) * 2.0;
    const auto parts = y.chunk(2, -1);
    y = torch::cat({-parts[1], parts[0]}, -1);
    y = y.softmax(-1) + y.sigmoid().pow(2).mean(0, true);
    y = y.slice(0, 1, 5) * y.select(0, 2).unsqueeze(0);
    y = torch::stack({y, y.squeeze().exp()}, 1).flatten(0, 1);
    return y.sum(1)
        .matmul(y.view({-1, 4}).t().mean(1, true).slice(0, 0, 2))
        .squeeze(-1);
  };
  const auto whole = random({4, 6}, 1).requires_grad_();
  const auto expected = chain(whole);
  const auto weights = random(expected.sizes(), 5);
  (expected * weights).sum().backward();
  for (const int n : {1, 2, 3, 4}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
        SCOPED_TRACE(placement.to_string());
        const auto leaf = whole.detach().clone().requires_grad_();
        const auto x = distributed(leaf, mesh, {placement});
        const auto y = full_tensor(chain(x));
        expect_close(y, expected.detach(), 1e-10, "value");
        (y * weights).sum().backward();
        EXPECT_EQ(spec_of(x.grad()), spec_of(x));
        expect_close(full_tensor(x.grad()), whole.grad(), 1e-10, "gradient");
      }
    });
  }
}

} // namespace
} // namespace weft::dtensor
