// DTensors in ordinary code: gradients that share memory, what is refused,
// values and norms.

#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
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
using dtensor::test::fake_line;
using dtensor::test::line;
using dtensor::test::local_of;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

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
    const auto own_a = to_local(a);
    ((own_a + to_local(b)) * weights).sum().backward();
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
    const auto of_y = (full_tensor(y) * weights).sum();
    const auto loss = of_y + (full_tensor(x * 2.0) * weights).sum();
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

// What libtorch sends back through a view shows the gradient's own memory.
TEST(SharedGradients, ViewsOfOneGradientAreNotAddedInto) {
  using Function =
      std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  const std::vector<Function> functions{
      [](auto& x, auto& w) {
        return (x.flatten() + w.flatten()) + (x * x).flatten();
      },
      [](auto& x, auto& w) {
        return (x.flatten().view({6, 4}) + w) + x * x + w * w;
      },
      [](auto& x, auto& w) { return (x.t() + w.t()) + (x * x).t(); },
      [](auto& x, auto& w) {
        return torch::cat({x, w}, 0) + torch::cat({w, x}, 0);
      }};
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = line(self);
    for (const auto& function : functions) {
      for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
        SCOPED_TRACE(placement.to_string());
        const auto leaf = [](uint64_t seed) {
          return random({6, 4}, seed).requires_grad_();
        };
        const auto x = leaf(1);
        const auto w = leaf(2);
        const auto whole = function(x, w);
        const auto weights = random(whole.sizes(), 3);
        (whole * weights).sum().backward();
        const auto dx = distributed(leaf(1), mesh, {placement});
        const auto dw = distributed(leaf(2), mesh, {placement});
        (full_tensor(function(dx, dw)) * weights).sum().backward();
        expect_close(full_tensor(dx.grad()), x.grad(), 1e-12, "x");
        expect_close(full_tensor(dw.grad()), w.grad(), 1e-12, "w");
      }
    }
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
          HasSubstr("plain tensor"),
          HasSubstr("[4, 2] [S(0)], [4, 2] plain"),
          HasSubstr("distribute_tensor()"),
          HasSubstr("rank 1/2, mesh tp=2")));
  // Numbers are no tensors, and 0-dim tensors count as numbers.
  EXPECT_THAT((x + 1).sizes(), ElementsAre(4, 2));
  EXPECT_THAT((x * at::full({}, 2.0)).sizes(), ElementsAre(4, 2));
}

TEST(Refusal, AWriteToAPendingSum) {
  const auto x = from_local(at::ones({2}), fake_line(0, 2), {Partial()});
  for (const auto& write : std::vector<std::function<void()>>{
           [&] { x.add_(1); }, [&] { x.relu_(); }, [&] { x.fill_(1); }}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(write),
        AllOf(
            HasSubstr(
                "cannot write in place to a tensor with these placements"),
            HasSubstr("[P(sum)]"),
            HasSubstr("\"tp\"")));
  }
  x.mul_(2);
  x.neg_();
  EXPECT_TRUE(at::equal(local_of(x), at::full({2}, -2.0f)));
}

TEST(Views, ThatWereCopiedAreNotTheirClones) {
  const auto x = distributed(at::ones({4, 2}), fake_line(0, 2), {Shard(0)});
  const auto row = x.select(0, 0);
  x.select(1, 0).zero_();
  EXPECT_EQ(local_of(x).sum().item<float>(), 2);
  row.clone().fill_(9);
  EXPECT_EQ(local_of(x).sum().item<float>(), 2);
}

TEST(Refusal, ChangingSizesInPlace) {
  const auto x = distributed(at::ones({4, 2}), fake_line(0, 2), {Shard(0)});
  for (const auto& change : std::vector<std::function<void()>>{
           [&] { x.unsqueeze_(0); }, [&] { x.t_(); }, [&] { x.squeeze_(); }}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(change),
        HasSubstr("would change the sizes or strides of a DTensor in place"));
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
  EXPECT_THROW(at::sum_out(wrong, x, 1), c10::ValueError);
}

TEST(Refusal, TwoMeshes) {
  const auto x = distributed(at::ones({4}), fake_line(0, 2), {Shard(0)});
  const auto y = distributed(at::ones({4}), fake_line(0, 2), {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { x + y; }),
      HasSubstr("[aten::add] mixes meshes: tp=2 vs tp=2, two DeviceMesh "
                "objects of the same shape and ranks that were made apart, so "
                "that their groups are not the same. Make one and copy it"));
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
        AllOf(HasSubstr("is sharded"), HasSubstr("full_tensor(x).item()")));
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
