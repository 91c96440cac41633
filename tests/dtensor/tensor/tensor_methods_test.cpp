// What at::Tensor and torch::nn::Module offer beside ops: a DTensor answers as
// a tensor does, or says why it cannot.

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/nn/distribute_module.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/gradient.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::random;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

struct WholeAndPlaced {
  mesh::DeviceMesh mesh;
  at::Tensor whole = random({4, 6}, 1);
  at::Tensor x;

  explicit WholeAndPlaced(RankContext& self)
      : mesh(self.mesh({2}, {"tp"})), x(distributed(whole, mesh, {Shard(0)})) {}
};

TEST(TensorMethods, CopiesKeepThePlacement) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    const auto& x = pair.x;
    for (const auto& copy :
         {x.clone(),
          x.to(at::kFloat),
          x.to(at::kCPU),
          x.cpu(),
          x.detach(),
          x.contiguous(),
          x.to(at::kDouble),
          x.t().contiguous().t(),
          torch::empty_like(x).copy_(x)}) {
      EXPECT_EQ(spec_of(copy), spec_of(x));
      expect_close(
          full_tensor(copy).to(at::kDouble), pair.whole, 1e-6, "values");
    }
    EXPECT_TRUE(x.to(at::kCPU).is_same(x));
    EXPECT_TRUE(x.contiguous().is_same(x));
    EXPECT_EQ(x.to(at::kFloat).scalar_type(), at::kFloat);
  });
}

TEST(TensorMethods, AnswersOfTheWhole) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    const auto& x = pair.x;
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_FALSE(x.t().is_contiguous());
    EXPECT_TRUE(x.is_non_overlapping_and_dense());
    const auto image = distributed(random({2, 3, 4, 4}, 1), pair.mesh, {kR});
    EXPECT_FALSE(image.is_contiguous(at::MemoryFormat::ChannelsLast));
    const auto last = image.contiguous(at::MemoryFormat::ChannelsLast);
    EXPECT_TRUE(last.is_contiguous(at::MemoryFormat::ChannelsLast));
    expect_close(full_tensor(last), random({2, 3, 4, 4}, 1), 0, "values");
    EXPECT_EQ(x.numel(), 24);
    EXPECT_EQ(x.nbytes(), 24 * sizeof(double));
    EXPECT_EQ(x.storage().nbytes(), 0);
    EXPECT_TRUE(x.has_storage());
    EXPECT_EQ(x.device(), at::kCPU);
    EXPECT_EQ(x.toString(), "CPUDoubleType");
    EXPECT_TRUE(x.sizes().equals({4, 6}));
  });
}

TEST(TensorMethods, SetDataReplacesSpecAndValues) {
  run_ranks(2, [](RankContext& self) {
    WholeAndPlaced pair(self);
    pair.x.set_data(distributed(random({2, 3}, 2), pair.mesh, {Shard(1)}));
    EXPECT_EQ(spec_of(pair.x).placements(), Placements{Shard(1)});
    expect_close(full_tensor(pair.x), random({2, 3}, 2), 0, "values");
  });
}

TEST(TensorMethods, ModulesChangeDtypeAndAreClonedInsideDeferredInit) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    torch::nn::Linear linear(6, 4);
    const auto weight = linear->weight.detach().clone();
    distribute_module(
        *linear, pair.mesh, [](const auto& name, auto& module, const auto& m) {
          distribute_parameter(module, "weight", m, {Shard(0)}, name);
        });
    const auto expected = full_tensor(linear->weight).detach();
    linear->to(at::kDouble);
    EXPECT_EQ(linear->weight.scalar_type(), at::kDouble);
    EXPECT_EQ(spec_of(linear->weight).placements(), Placements{Shard(0)});
    expect_close(
        full_tensor(linear->weight), expected.to(at::kDouble), 0, "values");
    std::shared_ptr<torch::nn::Module> copy;
    {
      const DeferredInit scope;
      copy = linear->clone();
    }
    const auto copied = copy->named_parameters()["weight"];
    EXPECT_EQ(spec_of(copied), spec_of(linear->weight));
    EXPECT_FALSE(copied.is_same(linear->weight));
    expect_close(full_tensor(copied), full_tensor(linear->weight), 0, "copy");
    const at::NoGradGuard no_grad;
    linear->weight.zero_();
    expect_close(
        full_tensor(copied), expected.to(at::kDouble), 0, "own memory");
  });
}

TEST(TensorMethods, SavingRefusesWithAReason) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    std::ostringstream stream;
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { torch::save(pair.x, stream); }),
        HasSubstr("a DTensor has no data of its own"));
  });
}

TEST(TensorMethods, GradientsOfLatecomersCanBeKeptPlaced) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    auto w = distributed(random({6}, 2), pair.mesh, {kR});
    w.requires_grad_();
    match_gradient_placement(w);
    (pair.x * w).sum().backward();
    EXPECT_EQ(spec_of(w.grad()), spec_of(w));
    expect_close(full_tensor(w.grad()), pair.whole.sum(0), 1e-12, "gradient");
  });
}

TEST(TensorMethods, BackwardTakesADistributedGradient) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    auto x = pair.x.detach().requires_grad_();
    const auto y = x * 2;
    y.backward(distributed(random({4, 6}, 3), pair.mesh, {kR}));
    expect_close(full_tensor(x.grad()), random({4, 6}, 3) * 2, 0, "gradient");
  });
}

TEST(TensorMethods, IsAliasOfTellsWhichMemoryIsShared) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    const auto& x = pair.x;
    EXPECT_TRUE(x.is_alias_of(x));
    EXPECT_TRUE(x.t().is_alias_of(x));
    EXPECT_TRUE(x.detach().is_alias_of(x.view({2, 2, 6})));
    EXPECT_FALSE(x.clone().is_alias_of(x));
    EXPECT_FALSE(x.is_alias_of(pair.whole));
    EXPECT_FALSE(pair.whole.is_alias_of(x));
    EXPECT_TRUE(to_local(x).is_alias_of(x));
    EXPECT_TRUE(pair.whole.t().is_alias_of(pair.whole));
  });
}

TEST(TensorMethods, IndexPutTakesAMaskAndAValue) {
  run_ranks(2, [](RankContext& self) {
    const WholeAndPlaced pair(self);
    auto expected = pair.whole.clone();
    expected.index_put_({expected > 0}, at::zeros({}, at::kDouble));
    auto plain = pair.x.clone();
    plain.index_put_({plain > 0}, at::zeros({}, at::kDouble));
    expect_close(full_tensor(plain), expected, 0, "a plain value");
    auto placed = pair.x.clone();
    placed.index_put_(
        {placed > 0}, distributed(at::zeros({}, at::kDouble), pair.mesh, {kR}));
    expect_close(full_tensor(placed), expected, 0, "a DTensor");
    auto number = pair.x.clone();
    number.index_put_({number > 0}, 0);
    expect_close(full_tensor(number), expected, 0, "a number");
  });
}

TEST(TensorMethods, SetDataKeepsThePlacement) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    std::vector<at::Tensor> parameters{
        distributed(random({6, 4}, 1), mesh, {Shard(0)}),
        distributed(random({5, 3}, 2), mesh, {Shard(1)}),
        distributed(random({7}, 3), mesh, {kR})};
    std::vector<at::Tensor> plain{
        random({6, 4}, 1), random({5, 3}, 2), random({7}, 3)};
    using namespace torch::nn::utils;
    vector_to_parameters(parameters_to_vector(parameters) * 2, parameters);
    vector_to_parameters(parameters_to_vector(plain) * 2, plain);
    const std::vector<Placement> expected{Shard(0), Shard(1), kR};
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(spec_of(parameters[i]).placement(0), expected[i]);
      expect_close(full_tensor(parameters[i]), plain[i], 0, "values");
    }
    // Other sizes: whatever comes.
    parameters[0].set_data(distributed(random({3, 2}, 4), mesh, {kR}));
    EXPECT_EQ(spec_of(parameters[0]).placement(0), kR);
  });
}

TEST(TensorMethods, WeightNormAndEye) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = self.mesh({3}, {"tp"});
    for (const int64_t dim : {0, 1}) {
      const auto v = random({7, 4}, 1);
      const auto g = random(
          dim == 0 ? std::vector<int64_t>{7, 1} : std::vector<int64_t>{1, 4},
          2);
      const auto run = [&](const at::Tensor& v, const at::Tensor& g) {
        const auto w = at::_weight_norm(v, g, dim);
        w.square().sum().backward();
        return w;
      };
      auto whole_v = v.clone().requires_grad_();
      auto whole_g = g.clone().requires_grad_();
      const auto expected = run(whole_v, whole_g);
      for (const int64_t cut : {0, 1}) {
        auto placed_v =
            distribute_tensor(v.clone().requires_grad_(), mesh, {Shard(cut)});
        auto placed_g =
            distribute_tensor(g.clone().requires_grad_(), mesh, {Shard(cut)});
        expect_close(
            full_tensor(run(placed_v, placed_g)), expected, 1e-12, "w");
        expect_close(full_tensor(placed_v.grad()), whole_v.grad(), 1e-12, "dv");
        expect_close(full_tensor(placed_g.grad()), whole_g.grad(), 1e-12, "dg");
      }
    }
    auto w = distributed(random({5, 4}, 3), mesh, {Shard(0)});
    torch::nn::init::eye_(w);
    expect_close(full_tensor(w), at::eye(5, 4, at::kDouble), 0, "eye_");
    EXPECT_EQ(spec_of(w).placement(0), Shard(0));
  });
}

TEST(TensorMethods, PendingSumsAreReducedBeforeAnInfiniteFactor) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    // Terms 3 and -1: divided by 0 one by one they would add up to a NaN.
    const auto x = from_local(
        at::full({2}, self.rank == 0 ? 3.0 : -1.0), mesh, {Partial()});
    const auto infinity = at::full({2}, INFINITY);
    EXPECT_TRUE(full_tensor(x / 0.0).equal(infinity));
    EXPECT_TRUE(full_tensor(x * INFINITY).equal(infinity));
    EXPECT_TRUE(full_tensor(x / INFINITY).equal(at::zeros({2})));
    EXPECT_TRUE(spec_of(x / 2.0).has_partial());
    const auto largest = from_local(
        at::full({2}, self.rank == 0 ? 3.0 : 0.0),
        mesh,
        {Partial(ReduceOp::kMax)});
    EXPECT_TRUE(full_tensor(largest / 0.0).equal(infinity));
  });
}

} // namespace
} // namespace weft::dtensor
