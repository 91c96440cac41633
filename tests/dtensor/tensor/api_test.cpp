// Computing with parts: local_map() and full_tensor().

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/nn/local_map.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

TEST(FullTensor, TakesGradientsAsTheyAreSaidToLie) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto x = distributed(random({4, 2}, 1).requires_grad_(), mesh, {Shard(0)});
    // Each rank uses the whole for its own term of the loss.
    const auto term = full_tensor(x, Placements{Partial()});
    (term * static_cast<double>(self.rank + 1)).sum().backward();
    expect_close(
        full_tensor(x.grad()), at::full({4, 2}, 3.0, at::kDouble), 0, "grad");
  });
}

TEST(LocalMap, ComputesWithPartsAndIsDifferentiable) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto w_whole = random({3, 4}, 1);
    const auto x_whole = random({4, 5}, 2);
    auto w = distributed(w_whole.clone().requires_grad_(), mesh, {Shard(1)});
    auto x = distributed(x_whole.clone().requires_grad_(), mesh, {Shard(0)});
    const auto mm = local_map(
        [](const at::Tensor& a, const at::Tensor& b) {
          EXPECT_FALSE(is_dtensor(a) || is_dtensor(b));
          return a.mm(b);
        },
        Placements{Partial()});
    const auto y = mm(w, x);
    EXPECT_EQ(spec_of(y).placements(), Placements{Partial()});
    y.square().sum().backward();

    auto w_alone = w_whole.clone().requires_grad_();
    auto x_alone = x_whole.clone().requires_grad_();
    w_alone.mm(x_alone).square().sum().backward();
    expect_close(full_tensor(w.grad()), w_alone.grad(), 1e-12, "w");
    expect_close(full_tensor(x.grad()), x_alone.grad(), 1e-12, "x");
  });
}

// Each rank's gradient of a whole weight beside a part of the inputs is a term
// of the sum.
TEST(LocalMap, AReplicatedInputBesideACutOutputGetsTheWholeGradient) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](RankContext& self) {
      const auto mesh = line(self);
      const auto x_whole = random({5, 4}, 1);
      const auto w_whole = random({4, 3}, 2);
      auto w_alone = w_whole.clone().requires_grad_();
      x_whole.mm(w_alone).square().sum().backward();
      const auto mm = local_map(
          [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b); },
          Placements{Shard(0)});
      auto w =
          distributed(w_whole.clone().requires_grad_(), mesh, {Replicate()});
      mm(distributed(x_whole, mesh, {Shard(0)}), w).square().sum().backward();
      EXPECT_EQ(spec_of(w.grad()).placements(), Placements{Replicate()});
      expect_close(to_local(w.grad()), w_alone.grad(), 1e-12, "w");
    });
  }
}

TEST(LocalMap, AFunctionThatCommunicatesSaysWhereGradientsLie) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(random({4, 2}, 1), mesh, {Shard(0)});
    auto w = distributed(
        random({2, 3}, 2).clone().requires_grad_(), mesh, {Replicate()});
    const auto total = [](const at::Tensor& a, const at::Tensor& b) {
      return a.mm(b).sum();
    };
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { local_map(total, Placements{Replicate()})(x, w); }),
        AllOf(
            HasSubstr("[local_map] input 1 is replicated"),
            HasSubstr("in_grad_placements")));
    LocalMapOptions options;
    options.in_grad_placements = {Placements{Shard(0)}, Placements{Partial()}};
    local_map(total, Placements{Replicate()}, options)(x, w);
    // Nothing learns here.
    const at::NoGradGuard no_grad;
    local_map(total, Placements{Replicate()})(x, w);
  });
}

TEST(LocalMap, InputsThatAreMovedToUnevenPartsGiveOutputsOfTheirSizes) {
  const auto x_whole = random({7, 5}, 1);
  const auto w_whole = random({5, 3}, 2);
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](RankContext& self) {
      const auto mesh = line(self);
      const LocalMapOptions options{
          .in_placements = {Placements{Shard(0)}, Placements{Replicate()}},
          .redistribute_inputs = true};
      const auto mm = local_map(
          [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b); },
          Placements{Shard(0)},
          options);
      auto x = distributed(x_whole.clone(), mesh, {Replicate()});
      auto w = distributed(w_whole.clone(), mesh, {Replicate()});
      x.requires_grad_();
      w.requires_grad_();
      const auto y = mm(x, w);
      EXPECT_EQ(y.sizes(), (at::IntArrayRef{7, 3}));
      EXPECT_EQ(spec_of(y).placements(), Placements{Shard(0)});
      expect_close(full_tensor(y), x_whole.mm(w_whole), 1e-12, "y");
      y.square().sum().backward();
      const auto y_grad = 2 * x_whole.mm(w_whole);
      expect_close(full_tensor(x.grad()), y_grad.mm(w_whole.t()), 1e-12, "x");
      expect_close(full_tensor(w.grad()), x_whole.t().mm(y_grad), 1e-12, "w");
    });
  }
}

TEST(LocalMap, AnInputElsewhereIsMovedOnlyIfAskedFor) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(random({4, 2}, 1), mesh, {Shard(1)});
    const auto twice = [](const at::Tensor& part) { return part * 2; };
    LocalMapOptions options{.in_placements = {Placements{Shard(0)}}};
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { local_map(twice, Placements{Shard(0)}, options)(x); }),
        AllOf(
            HasSubstr("[local_map] input 0"),
            HasSubstr("DTensor [4, 2] Double [S(1)] on tp=2"),
            HasSubstr("vs [S(0)]"),
            HasSubstr("rank " + std::to_string(self.rank))));
    options.redistribute_inputs = true;
    const auto y = local_map(twice, Placements{Shard(0)}, options)(x);
    EXPECT_EQ(spec_of(y).placements(), Placements{Shard(0)});
    expect_close(full_tensor(y), random({4, 2}, 1) * 2, 0, "values");
  });
}

TEST(LocalMap, UnevenPartsKeepTheirSizes) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    // 5 rows over 3 ranks: 2, 2, 1.
    const auto x = distributed(random({5, 2}, 1), mesh, {Shard(0)});
    const auto doubled = local_map(
        [](const at::Tensor& part) {
          return at::cat({part, part});
        },
        Placements{Shard(0)});
    const auto y = doubled(x);
    EXPECT_EQ(y.sizes(), (c10::IntArrayRef{10, 2}));
    EXPECT_EQ(
        dtensor_impl(y)->local().size(0), 2 * dtensor_impl(x)->local().size(0));
    const auto whole = random({5, 2}, 1);
    std::vector<at::Tensor> expected;
    for (const auto& part : whole.chunk(3)) {
      expected.insert(expected.end(), {part, part});
    }
    expect_close(full_tensor(y), at::cat(expected), 0, "values");
  });
}

TEST(LocalMap, SeveralOutputsGradientPlacementsAndPlainInputs) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto x = distributed(random({4, 2}, 1).requires_grad_(), mesh, {kR});
    LocalMapOptions options;
    // Each rank weighs the whole in its own way.
    options.in_grad_placements = {Placements{Partial()}, std::nullopt};
    const auto both = local_map(
        TensorFunction([](const std::vector<at::Tensor>& parts) {
          return std::vector<at::Tensor>{
              (parts[0] * parts[1]).sum(), parts[0].max()};
        }),
        {{Partial()}, {kR}},
        options);
    const auto outputs = both({x, at::full({}, self.rank + 1.0, at::kDouble)});
    ASSERT_EQ(outputs.size(), 2);
    EXPECT_EQ(spec_of(outputs[1]).placements(), Placements{kR});
    outputs[0].backward();
    expect_close(
        full_tensor(x.grad()), at::full({4, 2}, 3.0, at::kDouble), 0, "grad");

    const auto plain = both({at::ones({2}), at::ones({})});
    EXPECT_FALSE(is_dtensor(plain[0]));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { both({x}); }),
        HasSubstr("in_grad_placements: 2 vs 1"));
  });
}

} // namespace
} // namespace weft::dtensor
