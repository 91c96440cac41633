#include "dtensor/tensor/redistribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

TEST(RedistributeAsync, GivesWhatTheBlockingOneGives) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const std::vector<Placements> lists{
        {Shard(0), Shard(1)},
        {Replicate(), Replicate()},
        {Shard(1), Replicate()},
        {StridedShard(0, 2), Shard(0)}};
    const auto whole = random({5, 3}, 1);
    for (const auto& from : lists) {
      for (const auto& to : lists) {
        const auto x = distributed(whole, mesh, from);
        auto pending = redistribute_async(x, to);
        const auto y = pending.wait();
        EXPECT_TRUE(pending.is_completed());
        EXPECT_TRUE(y.is_same(pending.wait()));
        EXPECT_TRUE(at::equal(local_of(y), local_of(redistribute(x, to))));
      }
    }
  });
}

TEST(RedistributeAsync, IsPartOfTheGraphThatItStartedIn) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({5}, 1).requires_grad_();
    const auto x = distributed(whole, mesh, {Shard(0)});
    auto pending = redistribute_async(x, {Replicate()});
    const auto own_work = at::ones({3}).sum();
    at::Tensor y;
    {
      const at::NoGradGuard no_grad;
      y = pending.wait();
    }
    const auto loss = y.pow(3).sum();
    const auto grad =
        torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    full_tensor(grad).pow(2).sum().backward();
    expect_close(
        full_tensor(x.grad()),
        whole.detach().pow(3).mul(36),
        1e-12,
        "second derivative");
  });
}

TEST(RedistributeDtypes, SumsAreTakenInTheDtypeThatIsAskedFor) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    // 256 + 1 is no bfloat16.
    const auto term = at::full({3}, self.rank == 0 ? 256 : 1, at::kBFloat16)
                          .set_requires_grad(true);
    const auto x = from_local(term, mesh, {Partial()});
    const auto narrow = redistribute(x, {Replicate()});
    EXPECT_EQ(local_of(narrow)[0].item<float>(), 256);
    const auto wide =
        redistribute(x, {Replicate()}, {.forward_dtype = at::kFloat});
    EXPECT_EQ(wide.scalar_type(), at::kFloat);
    EXPECT_EQ(local_of(wide)[0].item<float>(), 257);
    wide.sum().backward();
    EXPECT_EQ(term.grad().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(term.grad(), at::ones({3}, at::kBFloat16)));
  });
}

TEST(RedistributeDtypes, GradientsTravelInTheirs) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    const auto x =
        distributed(at::ones({4, 2}).requires_grad_(), mesh, {Shard(1)});
    const auto y =
        redistribute(x, {Shard(0)}, {.backward_dtype = at::kBFloat16});
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    const auto loss = (y * y).sum();
    flight_recorder.reset();
    loss.backward();
    ASSERT_FALSE(flight_recorder.entries().empty());
    EXPECT_EQ(flight_recorder.entries().back().dtype, at::kBFloat16);
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full({4, 2}, 2.0)));
  });
}

TEST(RedistributeDtypes, OnlyFloatingPointTravelsInAnother) {
  const auto mesh = fake_line(0, 2);
  const auto whole = distributed(at::ones({4}, at::kLong), mesh, {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        redistribute(whole, {Replicate()}, {.forward_dtype = at::kFloat});
      }),
      AllOf(HasSubstr("DTensor [4] Long"), HasSubstr("rank 0/2")));
}

TEST(RedistributeCoalesced, ManyTensorsAreOneMessageADtype) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    std::vector<at::Tensor> wholes;
    std::vector<at::Tensor> xs;
    std::vector<Placements> targets;
    const auto add = [&](std::vector<int64_t> sizes,
                         Placement from,
                         Placement to) {
      wholes.push_back(random(sizes, wholes.size()).requires_grad_());
      xs.push_back(
          distributed(wholes.back().detach(), mesh, {from}).requires_grad_());
      targets.push_back({to});
    };
    add({5, 3}, Shard(0), Replicate());
    add({7}, Shard(0), Replicate());
    add({6, 2}, Shard(1), Replicate());
    add({4, 4}, Shard(0), Shard(1));
    add({3, 5}, Shard(1), Shard(0));
    add({3, 3}, Replicate(), Shard(0));
    add({2, 2}, Shard(0), Shard(0));
    flight_recorder.reset();
    const auto ys = redistribute_coalesced(xs, targets);
    EXPECT_THAT(
        flight_recorder.counts(),
        ElementsAre(Pair("all_gather_uneven", 1), Pair("all_to_all", 1)));
    EXPECT_TRUE(ys.back().is_same(xs.back()));
    auto loss = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < ys.size(); ++i) {
      EXPECT_EQ(spec_of(ys[i]).placements(), targets[i]);
      EXPECT_TRUE(at::equal(
          local_of(ys[i]),
          cut_all(wholes[i].detach(), targets[i], mesh.shape())[self.rank]));
      loss = loss + full_tensor(ys[i]).pow(2).sum();
    }
    loss.backward();
    for (size_t i = 0; i < ys.size(); ++i) {
      expect_close(
          full_tensor(xs[i].grad()), wholes[i].detach() * 2, 1e-12, "gradient");
    }
  });
}

TEST(RedistributeCoalesced, ReductionsToo) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    std::vector<at::Tensor> xs;
    for (int64_t i = 0; i < 4; ++i) {
      xs.push_back(from_local(at::full({3, 2}, i + 1), mesh, {Partial()}));
    }
    flight_recorder.reset();
    const auto ys = redistribute_coalesced(
        xs, {{Replicate()}, {Replicate()}, {Shard(0)}, {Shard(0)}});
    EXPECT_EQ(flight_recorder.entries().size(), 2);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(at::equal(full_tensor(ys[i]), at::full({3, 2}, 2 * (i + 1))));
    }
    EXPECT_THAT(redistribute_coalesced({}, {}), IsEmpty());
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { redistribute_coalesced(xs, {{Replicate()}}); }),
        HasSubstr("4 vs 1"));
  });
}

TEST(Redistribution, WhatIsWrongNamesTensorTargetAndRank) {
  const auto x = distributed(at::ones({4, 2}), fake_line(1, 2), {Shard(0)});
  const auto message = [&](const Placement& to) {
    return message_of_thrown<c10::ValueError>([&] { redistribute(x, {to}); });
  };
  EXPECT_THAT(
      message(Shard(2)),
      AllOf(
          HasSubstr("DTensor [4, 2] Float [S(0)]"),
          HasSubstr("to [S(2)]"),
          HasSubstr("rank 1/2")));
  EXPECT_THAT(
      message(Shard(0, {1, 2})),
      AllOf(
          HasSubstr("DTensor [4, 2] Float [S(0)]"),
          HasSubstr("3 vs 4"),
          HasSubstr("rank 1/2")));
  EXPECT_THAT(
      message(Partial(ReduceOp::kProduct)),
      AllOf(
          HasSubstr("P(product) has no exact form"),
          HasSubstr("from [S(0)] to [P(product)]"),
          HasSubstr("rank 1/2")));
}

} // namespace
} // namespace weft::dtensor
