// Making DTensors of parts and of wholes, and taking them apart.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

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
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

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
      HasSubstr("is already a DTensor: DTensor [4] Float [S(0)]"));
}

TEST(FromLocal, RunCheckComparesAllRanks) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto rows = self.rank == 1 ? 3 : 2;
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          from_local(at::ones({rows, 4}), mesh, {Shard(0)}, checked());
        }),
        HasSubstr("a local tensor whose sizes"));
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
          "has values that differ from those of the first rank of mesh dim "
          "\"tp\"");
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
        HasSubstr("rank 1 has values that differ from those of the first rank "
                  "of mesh dim \"tp\""));
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
    mesh.group(0).flight_recorder().reset();
    const auto message = [&](const Placement& placement,
                             std::optional<int64_t> src) {
      return message_of_thrown<c10::ValueError>(
          [&] { distribute_tensor(x, mesh, {placement}, src); });
    };
    EXPECT_THAT(
        message(Shard(0), 2),
        AllOf(HasSubstr("mesh dim \"tp\": 2 vs 2"), HasSubstr("rank")));
    EXPECT_THAT(message(Shard(0), -1), HasSubstr("-1 vs 2"));
    EXPECT_THAT(mesh.group(0).flight_recorder().counts(), IsEmpty());
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
        HasSubstr("is already a DTensor"));
    EXPECT_EQ(mesh.group(0).flight_recorder().counts().count("broadcast"), 0U);
  });
}

TEST(DistributeTensor, WholesThatDifferAreRefusedOnEveryRank) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const bool odd = self.rank == 2;
    const auto expect_refused = [&](const at::Tensor& tensor,
                                    const Placements& placements,
                                    const std::string& text) {
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { distribute_tensor(tensor, mesh, placements); }),
          AllOf(
              HasSubstr(
                  "[distribute_tensor] all ranks must pass the same shape"),
              HasSubstr("rank 2 has " + text),
              HasSubstr(c10::str("rank ", self.rank, "/4"))));
    };
    const Placements cut{Shard(0), Replicate()};
    expect_refused(at::ones({odd ? 6 : 4}), cut, "Float [6]");
    expect_refused(odd ? at::ones({2, 2}) : at::ones({4}), cut, "Float [2, 2]");
    expect_refused(
        at::ones({4}, odd ? at::kDouble : at::kFloat), cut, "Double [4]");
    expect_refused(
        at::ones({4}),
        odd ? Placements{Shard(0), Shard(0)} : cut,
        "Float [4] under [S(0), S(0)]");
    expect_refused(
        odd ? at::ones({4}).requires_grad_() * 2 : at::ones({4}),
        cut,
        "a result of Float [4]");
    expect_refused(
        odd ? at::Tensor() : at::ones({4}), cut, "an undefined tensor");
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

} // namespace
} // namespace weft::dtensor
