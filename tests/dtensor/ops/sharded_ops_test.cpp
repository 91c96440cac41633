// What a model is made of, on cuts of given sizes and strided ones: values and
// gradients equal one rank's.

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::random;
using weft::test::RankContext;
using weft::test::run_ranks;

struct OpCase {
  std::string name;
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> run;
};

std::vector<OpCase> op_cases() {
  return {
      {"add", {6, 4}, {6, 4}, [](auto& x, auto& w) { return x * w + x; }},
      {"broadcast",
       {6, 4},
       {4},
       [](auto& x, auto& w) { return (x + w).exp(); }},
      {"sum",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) { return (x * w).sum(0) + w.sum(); }},
      {"mean",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) {
         return x.mean(0) * w.mean() + w.mean(1, true).amax(0);
       }},
      {"softmax",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) { return x.softmax(-1) * w.log_softmax(0); }},
      {"linear",
       {5, 4},
       {6, 4},
       [](auto& x, auto& w) { return at::linear(x, w); }},
      {"matmul",
       {6, 4},
       {4, 6},
       [](auto& x, auto& w) { return x.matmul(w).relu(); }},
      {"transpose",
       {6, 4},
       {4, 6},
       [](auto& x, auto& w) { return x.t() * w.unsqueeze(1).squeeze(1); }},
      {"reshape",
       {6, 4},
       {12, 2},
       [](auto& x, auto& w) {
         return x.reshape({12, 2}) * w.flatten().view({12, 2});
       }},
      {"cat",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) {
         return torch::cat({x, w}, 0) + torch::cat({w, x}, 0);
       }},
      {"slice",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) {
         return x.slice(0, 1, 5) + w.slice(0, 0, 4) * x.select(0, 2);
       }},
      {"layer_norm",
       {6, 4},
       {4},
       [](auto& x, auto& w) { return at::layer_norm(x, {4}, w); }},
      {"cumsum",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) { return x.cumsum(0) + w.cumsum(1); }},
      {"where",
       {6, 4},
       {6, 4},
       [](auto& x, auto& w) { return at::where(x > w, x, w * 2.0); }},
  };
}

// Five of them.
std::vector<Placement> cuts_of_rows(int64_t size, int64_t shards) {
  std::vector<int64_t> last(shards, 0);
  last.back() = size;
  std::vector<int64_t> ragged(shards, 0);
  ragged.front() = 1;
  ragged.back() += size - 1;
  return {
      Shard(0),
      Shard(0, last),
      Shard(0, ragged),
      StridedShard(0, 2),
      StridedShard(0, 3)};
}

void check_case(
    const mesh::DeviceMesh& mesh,
    const OpCase& op,
    const Placements& x_at,
    const Placements& w_at) {
  SCOPED_TRACE(op.name + " " + to_string(x_at) + ", " + to_string(w_at));
  const auto leaf = [](c10::IntArrayRef sizes, uint64_t seed) {
    return random(sizes, seed).requires_grad_();
  };
  const auto x = leaf(op.first, 1);
  const auto w = leaf(op.second, 2);
  const auto expected = op.run(x, w);
  const auto weights = random(expected.sizes(), 3);
  (expected * weights).sum().backward();

  const auto dx = distributed(leaf(op.first, 1), mesh, x_at);
  const auto dw = distributed(leaf(op.second, 2), mesh, w_at);
  const auto y = full_tensor(op.run(dx, dw));
  expect_close(y, expected.detach(), 1e-10, "value");
  (y * weights).sum().backward();
  EXPECT_EQ(spec_of(dx.grad()), spec_of(dx));
  expect_close(full_tensor(dx.grad()), x.grad(), 1e-10, "first gradient");
  expect_close(full_tensor(dw.grad()), w.grad(), 1e-10, "second gradient");
}

TEST(ShardedOps, OnOneMeshDim) {
  for (const int n : {2, 3}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = self.mesh({n}, {"tp"});
      for (const auto& op : op_cases()) {
        const auto firsts = cuts_of_rows(op.first[0], n);
        const auto seconds = cuts_of_rows(op.second[0], n);
        for (size_t i = 0; i < firsts.size(); ++i) {
          check_case(mesh, op, {firsts[i]}, {seconds[i]});
          check_case(mesh, op, {firsts[i]}, {seconds[(i + 1) % 5]});
          check_case(mesh, op, {firsts[i]}, {Replicate()});
          check_case(mesh, op, {Replicate()}, {seconds[i]});
        }
      }
    });
  }
}

TEST(ShardedOps, OnTwoMeshDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const std::vector<Placements> lists{
        {StridedShard(0, 2), Shard(0)},
        {StridedShard(0, 2), Replicate()},
        {Shard(0), StridedShard(0, 2)},
        {Shard(0), Shard(0)}};
    for (const auto& op : op_cases()) {
      for (const auto& x : lists) {
        for (const auto& w : lists) {
          check_case(mesh, op, x, w);
        }
      }
    }
  });
}

TEST(ShardedOps, LookupsAndLosses) {
  const int64_t classes = 7;
  for (const int n : {2, 3}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = self.mesh({n}, {"tp"});
      const auto index = at::tensor({3, 0, 6, 1, 1, 5}, at::kLong);
      const auto table = random({classes, 4}, 1).requires_grad_();
      const auto logits = random({6, classes}, 2).requires_grad_();
      const auto rows = at::embedding(table, index);
      rows.pow(2).sum().backward();
      at::cross_entropy_loss(logits, index).backward();
      const auto whole_index = distributed(index, mesh, {Replicate()});
      for (const auto& cut : cuts_of_rows(classes, n)) {
        SCOPED_TRACE(cut.to_string());
        const auto t =
            distributed(table.detach().clone().requires_grad_(), mesh, {cut});
        const auto found = at::embedding(t, whole_index);
        expect_close(full_tensor(found), rows.detach(), 1e-12, "rows");
        found.pow(2).sum().backward();
        expect_close(full_tensor(t.grad()), table.grad(), 1e-10, "table");
        const auto l = distributed(
            logits.detach().clone().requires_grad_(),
            mesh,
            {cut.with_tensor_dim(1)});
        at::cross_entropy_loss(l, whole_index).backward();
        expect_close(full_tensor(l.grad()), logits.grad(), 1e-10, "classes");
      }
      for (const auto& cut : cuts_of_rows(6, n)) {
        SCOPED_TRACE(cut.to_string());
        const auto l =
            distributed(logits.detach().clone().requires_grad_(), mesh, {cut});
        at::cross_entropy_loss(l, whole_index).backward();
        expect_close(full_tensor(l.grad()), logits.grad(), 1e-10, "logits");
      }
    });
  }
}

// A number that libtorch divides by a tensor is a new tensor, and no pending
// reduction like it.
TEST(PendingReductions, AreOperandsOfNumbersAndOfNewTensors) {
  using Op = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Op>> reductions{
      {"max", [](const at::Tensor& x) { return x.max(); }},
      {"min", [](const at::Tensor& x) { return x.min(); }},
      {"amax", [](const at::Tensor& x) { return x.amax(0); }},
      {"amin", [](const at::Tensor& x) { return x.amin(0); }},
      {"prod", [](const at::Tensor& x) { return x.prod(); }},
      {"sum", [](const at::Tensor& x) { return x.sum(); }},
      {"mean", [](const at::Tensor& x) { return x.mean(); }},
      {"norm of inf", [](const at::Tensor& x) { return x.norm(INFINITY); }}};
  const std::vector<std::pair<std::string, Op>> uses{
      {"2.0 / x", [](const at::Tensor& x) { return 2.0 / x; }},
      {"5 % x", [](const at::Tensor& x) { return 5 % x; }},
      {"2 - x", [](const at::Tensor& x) { return 2 - x; }},
      {"empty_like, fill_, div_",
       [](const at::Tensor& x) { return at::empty_like(x).fill_(3).div_(x); }},
      {"ones_like, mul_",
       [](const at::Tensor& x) { return at::ones_like(x).mul_(x); }},
      {"full_like, sub_",
       [](const at::Tensor& x) { return at::full_like(x, 4).sub_(x); }},
      {"zeros_like, add_",
       [](const at::Tensor& x) { return at::zeros_like(x).add_(x); }},
      {"rand_like, zero_, maximum",
       [](const at::Tensor& x) {
         return at::maximum(at::rand_like(x).zero_(), x);
       }},
      {"new_full, atan2_",
       [](const at::Tensor& x) { return x.new_full(x.sizes(), 2).atan2_(x); }}};
  const auto whole = random({5, 3}, 4).abs() + 0.5;
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    for (const auto& [reduction, reduce] : reductions) {
      for (const auto& [use, run] : uses) {
        expect_close(
            full_tensor(run(reduce(distributed(whole, mesh, {Shard(0)})))),
            run(reduce(whole)),
            1e-12,
            use + " of " + reduction);
      }
    }
    auto w = distributed(whole.clone(), mesh, {Shard(0)});
    w.requires_grad_();
    (w * w).sum().backward();
    const auto norm = torch::nn::utils::clip_grad_norm_(
        std::vector<at::Tensor>{w}, 1.0, INFINITY);
    EXPECT_NEAR(norm, 2 * whole.max().item<double>(), 1e-12);
  });
}

} // namespace
} // namespace weft::dtensor
