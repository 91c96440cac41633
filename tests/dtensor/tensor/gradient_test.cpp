// Gradients that leaves keep: where they lie and what they are.

#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::random;
using weft::test::RankContext;
using weft::test::run_ranks;
using ProductOp =
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

struct ProductCase {
  const char* name;
  ProductOp op;
  std::vector<int64_t> x;
  std::vector<int64_t> w;
};

std::vector<ProductCase> products() {
  return {
      {"mm", [](auto x, auto w) { return x.mm(w); }, {4, 6}, {6, 3}},
      {"conv1d",
       [](auto x, auto w) { return at::conv1d(x, w); },
       {2, 3, 8},
       {4, 3, 3}},
      {"conv2d",
       [](auto x, auto w) { return at::conv2d(x, w); },
       {2, 3, 6, 6},
       {4, 3, 3, 3}},
      {"conv_transpose2d",
       [](auto x, auto w) { return at::conv_transpose2d(x, w); },
       {2, 3, 5, 5},
       {3, 4, 3, 3}},
      {"einsum",
       [](auto x, auto w) {
         return at::einsum("ij,jk->ik", {x, w});
       },
       {4, 6},
       {6, 3}},
      {"outer", [](auto x, auto w) { return at::outer(x, w); }, {4}, {6}}};
}

// The gradient of a loss with respect to what a tensor's terms reduce to is
// one tensor, the same for every term: it is replicated where the leaf is
// Partial. It is computed twice, so that the second one is added to the first.
void check_leaf(
    const ProductCase& each,
    const mesh::DeviceMesh& mesh,
    const Placements& of_x,
    const Placements& of_w) {
  SCOPED_TRACE(
      std::string(each.name) + " " + to_string(of_x) + " " + to_string(of_w));
  const auto a = random(each.x, 1);
  const auto b = random(each.w, 2);
  auto x = distributed(a.clone().requires_grad_(), mesh, of_x);
  auto w = distributed(b.clone().requires_grad_(), mesh, of_w);
  auto x_alone = a.clone().requires_grad_();
  auto w_alone = b.clone().requires_grad_();
  for (int64_t i = 0; i < 2; ++i) {
    each.op(x, w).square().sum().backward();
    each.op(x_alone, w_alone).square().sum().backward();
    EXPECT_EQ(spec_of(x.grad()), spec_of(x).without_partial());
    EXPECT_EQ(spec_of(w.grad()), spec_of(w).without_partial());
    expect_close(full_tensor(x.grad()), x_alone.grad(), 1e-10, "x");
    expect_close(full_tensor(w.grad()), w_alone.grad(), 1e-10, "w");
  }
}

TEST(LeafGradient, OfAPartialLeafIsReplicatedAndCountedOnce) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const auto& each : products()) {
      for (const auto op :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
        check_leaf(each, mesh, {Partial(op), kR}, {kR, kR});
        check_leaf(each, mesh, {kR, Partial(op)}, {kR, kR});
        check_leaf(each, mesh, {Partial(op), Partial(op)}, {kR, Shard(0)});
        check_leaf(each, mesh, {Shard(0), kR}, {Partial(op), kR});
        check_leaf(each, mesh, {Partial(op), Shard(0)}, {kR, Partial(op)});
      }
    }
  });
}

TEST(LeafGradient, OfAProductInBfloat16IsCountedOnce) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto a = at::ones({4, 8}, at::kBFloat16);
    auto x = distributed(
        a.clone().requires_grad_(), mesh, {Partial(ReduceOp::kAvg), kR});
    auto w = distributed(at::ones({8, 2}, at::kBFloat16), mesh, {kR, kR});
    x.mm(w).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full_like(a, 2)));
  });
}

// A pass that failed never came to its end, where sums are reduced.
// unfold() refuses a tensor shorter than a window: all ranks take another way
// where one has no rows.
TEST(LeafGradient, OfWindowsIsThereWhereARankHasNoRows) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = self.mesh({3}, {"tp"});
    const auto weight = random({2, 4, 1}, 3);
    for (const auto& placement :
         {Shard(0), Shard(0, {0, 2, 0}), StridedShard(0, 2)}) {
      auto x =
          distributed(random({2, 4}, 1).requires_grad_(), mesh, {placement});
      (x.unfold(0, 1, 1) * distributed(weight, mesh, {Shard(0)}))
          .sum()
          .backward();
      expect_close(full_tensor(x.grad()), weight.squeeze(2), 0, "grad");
    }
  });
}

// Two leaves of one sum get one gradient, of which one keeps a part.
TEST(LeafGradient, HasMemoryOfItsOwn) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    for (const auto& placement : {Shard(0), Shard(1), Shard(0, {1, 3})}) {
      for (const bool is_cut_first : {true, false}) {
        auto whole =
            distributed(random({4, 3}, 1).requires_grad_(), mesh, {kR});
        auto cut =
            distributed(random({4, 3}, 2).requires_grad_(), mesh, {placement});
        match_gradient_placement(whole);
        match_gradient_placement(cut);
        const auto weight = random({4, 3}, 3);
        for (int pass = 0; pass < 2; ++pass) {
          const auto sum = is_cut_first ? cut + whole : whole + cut;
          (sum * distributed(weight, mesh, {kR})).sum().backward();
        }
        expect_close(full_tensor(whole.grad()), weight * 2, 0, "whole");
        expect_close(full_tensor(cut.grad()), weight * 2, 0, "cut");

        std::vector<at::Tensor> sums{whole.clone()};
        std::vector<at::Tensor> terms{cut};
        whole.mutable_grad() = at::Tensor();
        cut.mutable_grad() = at::Tensor();
        for (int pass = 0; pass < 2; ++pass) {
          sums[0] = whole.clone();
          at::_foreach_add_(sums, terms);
          (sums[0] * distributed(weight, mesh, {kR})).sum().backward();
        }
        expect_close(full_tensor(whole.grad()), weight * 2, 0, "foreach whole");
        expect_close(full_tensor(cut.grad()), weight * 2, 0, "foreach cut");
      }
    }
  });
}

TEST(LeafGradient, IsReducedAfterAPassThatFailed) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto a = random({4, 6}, 1);
    const auto rows = random({6, 4}, 2);
    auto x = distributed(a.clone().requires_grad_(), mesh, {kR});
    const auto data = distributed(rows, mesh, {Shard(0)});
    auto fails = distributed(a.clone().requires_grad_(), mesh, {kR});
    fails.register_hook([](const at::Tensor& gradient) {
      TORCH_CHECK_VALUE(false, "this pass fails");
      return gradient;
    });
    // What was computed last goes first.
    const auto failing = (fails * 2).sum();
    const auto product = data.mm(x).sum();
    EXPECT_THROW((failing + product).backward(), c10::ValueError);
    EXPECT_TRUE(x.grad().defined());
    x.mutable_grad().reset();
    data.mm(x).sum().backward();
    EXPECT_EQ(spec_of(x.grad()).placement(0), kR);
    auto alone = a.clone().requires_grad_();
    rows.mm(alone).sum().backward();
    expect_close(full_tensor(x.grad()), alone.grad(), 1e-12, "gradient");
  });
}

} // namespace
} // namespace weft::dtensor
