// What at::Tensor and torch::nn::Module offer beside ops: a DTensor answers as
// a tensor does, or says why it cannot.

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/deferred_init.h"
#include "dtensor/distribute_module.h"
#include "dtensor/dtensor.h"
#include "dtensor/gradient.h"
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
    keep_gradient_placed(w);
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

} // namespace
} // namespace weft::dtensor
