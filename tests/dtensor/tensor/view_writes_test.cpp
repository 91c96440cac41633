// A view and its base show the same values, also where the view op had to
// redistribute its input, so that the view's local tensor is a copy.

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/random/random_state.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/redistribution.h"
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
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

using Change = std::function<void(const at::Tensor&)>;

struct ViewWrite {
  const char* text;
  std::vector<int64_t> sizes;
  Change write;
};

// What `write` makes of a tensor under `placements` and of a plain one.
void expect_same(
    const ViewWrite& each,
    const mesh::DeviceMesh& mesh,
    const Placements& placements) {
  const auto whole = random(each.sizes, 1);
  const auto x = distributed(whole, mesh, placements);
  const auto expected = whole.clone();
  each.write(expected);
  each.write(x);
  expect_close(
      full_tensor(x),
      expected,
      0,
      each.text + (" of " + to_string(placements)));
}

const std::vector<ViewWrite>& view_writes() {
  static const std::vector<ViewWrite> cases{
      {"w[1].unsqueeze(0).zero_()",
       {6, 4},
       [](const at::Tensor& w) { w[1].unsqueeze(0).zero_(); }},
      {"w.slice(0, 1).t().add_(1)",
       {6, 4},
       [](const at::Tensor& w) { w.slice(0, 1).t().add_(1); }},
      {"w.view({3, 8, 8})[0].zero_()",
       {24, 8},
       [](const at::Tensor& w) {
         w.view({3, 8, 8})[0].zero_();
       }},
      {"b.view({3, 8})[2].fill_(1)",
       {24},
       [](const at::Tensor& b) {
         b.view({3, 8})[2].fill_(1);
       }},
      {"w.slice(0, 0, 8).t().zero_()",
       {24, 8},
       [](const at::Tensor& w) { w.slice(0, 0, 8).t().zero_(); }},
      {"w.chunk(2)[0].t().zero_()",
       {6, 4},
       [](const at::Tensor& w) { w.chunk(2)[0].t().zero_(); }},
      {"w.detach().view({2, 12})[0].detach().mul_(2)",
       {6, 4},
       [](const at::Tensor& w) {
         w.detach().view({2, 12})[0].detach().mul_(2);
       }},
      {"two copied views in turn",
       {6, 4},
       [](const at::Tensor& w) {
         const auto a = w.view({2, 12});
         const auto b = w.view({3, 8});
         a[0].add_(1);
         b[1].mul_(2);
         a.select(1, 0).copy_(b.select(1, 1).slice(0, 0, 2));
       }},
      {"_foreach_add_ of copied views",
       {6, 4},
       [](const at::Tensor& w) {
         at::_foreach_add_({w.view({2, 12})[0], w.view({2, 12})[1]}, 1);
       }},
      {"add_out into a copied view",
       {6, 4},
       [](const at::Tensor& w) {
         auto out = w.view({2, 12})[0];
         const auto other = w.view({2, 12})[1].clone();
         at::add_out(out, other, other);
       }},
      {"masked_fill_ of a copied view", {6, 4}, [](const at::Tensor& w) {
         auto view = w.view({2, 3, 4}).select(0, 1);
         view.masked_fill_(view.gt(0), 7);
       }}};
  return cases;
}

TEST(ViewWrites, ReachTheBase) {
  for (const int n : {1, 2, 3}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& each : view_writes()) {
        for (const auto& placement : {kR, Shard(0), Shard(-1)}) {
          expect_same(
              each,
              mesh,
              {placement.normalized(static_cast<int64_t>(each.sizes.size()))});
        }
      }
    });
  }
}

TEST(ViewWrites, ReachTheBaseOnTwoMeshDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const auto& each : view_writes()) {
      for (const auto& placements :
           std::vector<Placements>{{kR, Shard(0)}, {Shard(0), Shard(0)}}) {
        expect_same(each, mesh, placements);
      }
    }
    expect_same(
        {"b.view({6, 4}).slice(0, 1).add_(1)",
         {24},
         [](const at::Tensor& b) {
           b.view({6, 4}).slice(0, 1).add_(1);
         }},
        mesh,
        {kR, Shard(0)});
    expect_same(
        {"w.view({3, 8}).select(0, 1).mul_(2)",
         {6, 4},
         [](const at::Tensor& w) {
           w.view({3, 8}).select(0, 1).mul_(2);
         }},
        mesh,
        {Partial(), Shard(0)});
  });
}

TEST(ViewWrites, ReachTheBaseThroughConjugatedAndNegatedViews) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = at::complex(random({4, 3}, 1), random({4, 3}, 2));
    const auto x = distributed(whole, mesh, {Shard(0)});
    const auto expected = whole.clone();
    for (const auto& tensor : {expected, x}) {
      const auto conjugate = at::conj(tensor);
      const auto negative = at::_neg_view(tensor);
      conjugate.mul_(c10::complex<double>(0, 2));
      negative.add_(1);
      conjugate.add_(negative);
    }
    expect_close(
        at::view_as_real(full_tensor(x)),
        at::view_as_real(expected),
        1e-12,
        "conj and neg");
  });
}

TEST(ViewWrites, DrawTheNumbersOfTheBase) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(at::zeros({24, 4}), mesh, {Shard(0)});
    const auto view = x.view({3, 8, 4})[1];
    manual_seed(mesh, 5);
    view.normal_();
    EXPECT_GT(full_tensor(view).abs().sum().item<double>(), 1);
    EXPECT_TRUE(at::equal(full_tensor(x).slice(0, 8, 16), full_tensor(view)));
    EXPECT_EQ(full_tensor(x).slice(0, 0, 8).abs().sum().item<double>(), 0);
  });
}

TEST(CopiedViews, SeeWritesToTheBaseAndToOtherViews) {
  for (const int n : {2, 3}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      const auto whole = random({6, 4}, 1);
      const auto x = distributed(whole, mesh, {Shard(0)});
      const auto expected = whole.clone();
      const auto v = x.view({3, 2, 4});
      const auto w = v.select(0, 1).view({8});
      x.mul_(2);
      expected.mul_(2);
      expect_close(full_tensor(v), expected.view({3, 2, 4}), 0, "base");
      x.slice(0, 2, 3).add_(1);
      expected.slice(0, 2, 3).add_(1);
      expect_close(
          full_tensor(w), expected.view({24}).slice(0, 8, 16), 0, "row");
      expect_close(full_tensor(v), expected.view({3, 2, 4}), 0, "row");
      at::_foreach_mul_({x}, 3);
      expected.mul_(3);
      expect_close(full_tensor(v + 0), expected.view({3, 2, 4}), 0, "list");
      const auto step = [](const at::Tensor& tensor) {
        at::_fused_sgd_(
            {tensor},
            {at::ones_like(tensor)},
            {},
            /*weight_decay=*/0.0,
            /*momentum=*/0.0,
            /*lr=*/0.5,
            /*dampening=*/0.0,
            /*nesterov=*/false,
            /*maximize=*/false,
            /*is_first_step=*/true);
      };
      step(x);
      step(expected);
      expect_close(full_tensor(v), expected.view({3, 2, 4}), 0, "fused step");
      x.view({2, 12})[0].zero_();
      expected.view({2, 12})[0].zero_();
      expect_close(full_tensor(v), expected.view({3, 2, 4}), 0, "other view");
    });
  }
}

TEST(CopiedViews, AreUpToDateInLinearAndNorms) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto whole = random({6, 4}, 1);
    const auto x = distributed(whole, mesh, {Shard(0)});
    const auto weight = random({5, 4}, 2);
    const auto w = distributed(weight, mesh, {Shard(0)});
    for (const bool inference : {false, true}) {
      const c10::InferenceMode mode(inference);
      const auto base = x.clone();
      const auto expected = whole.clone();
      const auto v = base.view({2, 3, 4});
      at::linear(v, w);
      at::rms_norm(v, {4});
      base.mul_(2);
      expected.mul_(2);
      const auto shown = expected.view({2, 3, 4});
      expect_close(
          full_tensor(at::linear(v, w)),
          at::linear(shown, weight),
          1e-12,
          "linear");
      expect_close(
          full_tensor(at::rms_norm(v, {4})),
          at::rms_norm(shown, {4}),
          1e-12,
          "norm");
      base.mul_(2);
      expect_close(
          full_tensor(at::linear(base, w)),
          at::linear(expected * 2, weight),
          1e-12,
          "linear of the base");
    }
  });
}

TEST(ViewWrites, HaveTheGradientsOfOneRank) {
  for (const int n : {2, 3}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      const auto run = [](const at::Tensor& leaf) {
        const auto y = leaf * 1;
        y.view({2, 3, 4}).select(0, 1).mul_(3);
        y.view({3, 8}).select(0, 1).exp_();
        y.square().sum().backward();
        return leaf.grad();
      };
      const auto whole = random({6, 4}, 1);
      const auto x = distributed(whole, mesh, {Shard(0)}).requires_grad_();
      const auto expected = run(whole.clone().requires_grad_());
      expect_close(full_tensor(run(x)), expected, 1e-10, "gradient");
    });
  }
}

TEST(ViewWrites, AreRefusedWhereTheBaseCannotHoldThem) {
  run_ranks(2, [](RankContext& self) {
    const auto x = from_local(
        at::full({2}, 2.0), line(self), {Partial(ReduceOp::kProduct)});
    const auto view = at::_neg_view(x);
    const auto text = message_of_thrown<c10::ValueError>([&] { view.mul_(3); });
    EXPECT_THAT(text, HasSubstr("R to P(product) has no exact form"));
    EXPECT_TRUE(at::equal(full_tensor(x), at::full({2}, 4.0)));
  });
}

TEST(ViewWrites, AreImplicitMovesToAnExplicitScope) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(at::ones({4, 4}), mesh, {Shard(0)});
    const auto view = x.transpose(0, 1).select(1, 1);
    const ExplicitRedistribution scope({.strict = true});
    const auto text = message_of_thrown<c10::ValueError>([&] { view.add_(1); });
    EXPECT_THAT(text, HasSubstr("a view of a tensor with placements [S(1)]"));
  });
}

} // namespace
} // namespace weft::dtensor
