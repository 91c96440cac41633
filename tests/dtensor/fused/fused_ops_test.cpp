// The fused ops against the composed forms: values and gradients, in all
// dtypes, for every layout in memory and every way of cutting.

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/fused/fused_ops.h"
#include "dtensor/tensor/dtensor.h"
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
using dtensor::test::kR;
using dtensor::test::random;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// An op, what it stands for, and how many of its inputs have gradients.
struct Op {
  std::string name;
  Function fused;
  Function composed;
  size_t differentiable;
};

Op swiglu_op() {
  return {
      "swiglu",
      [](const Tensors& in) { return swiglu(in[0], in[1]); },
      [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
      2};
}

at::Tensor rotate(const Tensors& in) {
  const auto halves = in[0].chunk(2, -1);
  return in[0] * in[1] + at::cat({-halves[1], halves[0]}, -1) * in[2];
}

Op rotary_op() {
  return {
      "rotary_embedding",
      [](const Tensors& in) { return rotary_embedding(in[0], in[1], in[2]); },
      rotate,
      1};
}

constexpr double kEps = 1e-5;

// The last dims, as many as the weight has.
Op rms_norm_op() {
  return {
      "rms_norm",
      [](const Tensors& in) {
        register_rms_norm();
        return at::rms_norm(in[0], in[1].sizes(), in[1], kEps);
      },
      [](const Tensors& in) {
        std::vector<int64_t> dims;
        for (int64_t i = 1; i <= in[1].dim(); ++i) {
          dims.push_back(-i);
        }
        const auto mean = in[0].pow(2).mean(dims, /*keepdim=*/true);
        return in[0] * (mean + kEps).rsqrt() * in[1];
      },
      2};
}

Tensors run(const Function& function, const Op& op, const Tensors& inputs) {
  Tensors inside = inputs;
  for (size_t i = 0; i < op.differentiable; ++i) {
    inside[i] = inputs[i].detach().requires_grad_();
  }
  const auto output = function(inside);
  const auto weights = random(output.sizes(), 77).to(output.scalar_type());
  Tensors results{output.detach()};
  const auto grads = torch::autograd::grad(
      {output},
      Tensors(
          inside.begin(),
          inside.begin() + static_cast<int64_t>(op.differentiable)),
      {weights});
  results.insert(results.end(), grads.begin(), grads.end());
  return results;
}

// Largest difference, in units of `expected`'s largest value (or 1).
void expect_within(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double bound,
    const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) {
    return;
  }
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double error =
      (actual.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(error, bound * scale) << what;
}

// The fused op on `inputs` against the composed one on the same numbers in
// double: computed in float and rounded once (half, bfloat16: half a unit).
void compare(const Op& op, const Tensors& inputs) {
  const auto dtype = inputs[0].scalar_type();
  const double bound = dtype == at::kDouble     ? 1e-14
                       : dtype == at::kFloat    ? 2e-6
                       : dtype == at::kBFloat16 ? 1.0 / 256
                                                : 1.0 / 2048;
  Tensors doubles;
  for (const auto& input : inputs) {
    doubles.push_back(input.to(at::kDouble));
  }
  const auto actual = run(op.fused, op, inputs);
  const auto expected = run(op.composed, op, doubles);
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto what = op.name + " in " + c10::toString(dtype) +
                      (i == 0 ? " output" : " gradient");
    EXPECT_EQ(actual[i].scalar_type(), dtype) << what;
    // Each row's gradient of a weight is rounded in what it is computed in.
    expect_within(actual[i], expected[i], bound * (i == 0 ? 1 : 2), what);
  }
}

const auto kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

Tensors swiglu_inputs(c10::IntArrayRef sizes, at::ScalarType dtype) {
  return {random(sizes, 1).mul(4).to(dtype), random(sizes, 2).to(dtype)};
}

Tensors rotary_inputs(c10::IntArrayRef sizes, at::ScalarType dtype) {
  const auto table = sizes.slice(sizes.size() - 2);
  return {
      random(sizes, 1).to(dtype),
      random(table, 2).to(dtype),
      random(table, 3).to(dtype)};
}

Tensors rms_norm_inputs(
    c10::IntArrayRef sizes,
    size_t normalized,
    at::ScalarType dtype) {
  return {
      random(sizes, 1).to(dtype),
      random(sizes.slice(sizes.size() - normalized), 2).add(1).to(dtype)};
}

// ---- sizes and dtypes -------------------------------------------------------

TEST(FusedOps, SwigluEqualsComposed) {
  for (const auto dtype : kDtypes) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{},
          {1},
          {31},
          {33},
          {0},
          {3, 0},
          {0, 4},
          {2, 5, 7},
          {3, 64},
          {40, 129},
          {70, 1000}}) {
      compare(swiglu_op(), swiglu_inputs(sizes, dtype));
    }
  }
}

TEST(FusedOps, RotaryEqualsComposed) {
  for (const auto dtype : kDtypes) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{5, 2},
          {3, 6},
          {2, 3, 10},
          {2, 3, 5, 32},
          {0, 3, 5, 4},
          {2, 0, 5, 4},
          {2, 3, 0, 4},
          {2, 3, 5, 0},
          {2, 3, 2, 7, 18},
          {4, 4, 40, 128}}) {
      compare(rotary_op(), rotary_inputs(sizes, dtype));
    }
  }
}

TEST(FusedOps, RmsNormEqualsComposed) {
  for (const auto dtype : kDtypes) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{1},
          {7},
          {3, 1},
          {0, 4},
          {3, 2, 33},
          {5, 64},
          {130, 100},
          {2, 65, 300}}) {
      compare(rms_norm_op(), rms_norm_inputs(sizes, 1, dtype));
    }
    compare(rms_norm_op(), rms_norm_inputs({4, 3, 5, 6}, 2, dtype));
  }
}

TEST(FusedOps, RmsNormWithoutWeightAndEpsilon) {
  register_rms_norm();
  const auto x = random({6, 37}, 1).requires_grad_();
  const auto y = at::rms_norm(x, {37}, {}, {});
  EXPECT_THAT(y.grad_fn()->name(), HasSubstr("FusedRmsNorm"));
  const auto eps = std::numeric_limits<double>::epsilon();
  const auto z = x * (x.pow(2).mean(-1, true) + eps).rsqrt();
  const auto w = random({6, 37}, 2);
  expect_close(y, z, 1e-14, "output");
  expect_close(
      torch::autograd::grad({y}, {x}, {w})[0],
      torch::autograd::grad({z}, {x}, {w})[0],
      1e-13,
      "gradient");
}

// A weight of another dtype: computed in the wider of the two.
TEST(FusedOps, RmsNormOfTwoDtypes) {
  register_rms_norm();
  const auto x = random({6, 37}, 1).to(at::kBFloat16).requires_grad_();
  const auto weight = random({37}, 2).to(at::kFloat).requires_grad_();
  const auto y = std::get<0>(at::_fused_rms_norm(x, {37}, weight, kEps));
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  const auto expected = rms_norm_op().composed(
      {x.detach().to(at::kDouble), weight.detach().to(at::kDouble)});
  expect_within(y.detach(), expected, 1.0 / 256, "output");
}

// ---- memory -----------------------------------------------------------------

// The same numbers as seen through permuted dims, a part of a wider tensor, and
// a broadcast.
std::vector<at::Tensor> laid_out(const at::Tensor& x) {
  std::vector<at::Tensor> forms{x};
  for (int64_t dim = 0; dim + 1 < x.dim(); ++dim) {
    forms.push_back(
        x.transpose(dim, dim + 1).contiguous().transpose(dim, dim + 1));
  }
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    const auto wide = at::cat({x, x, x}, dim);
    forms.push_back(wide.narrow(dim, x.size(dim), x.size(dim)));
  }
  forms.push_back(at::stack({x, x}, -1).select(-1, 1));
  return forms;
}

TEST(FusedOps, AnyLayoutGivesTheSameBits) {
  const std::vector<std::pair<Op, Tensors>> cases{
      {swiglu_op(), swiglu_inputs({3, 4, 5, 34}, at::kFloat)},
      {rotary_op(), rotary_inputs({3, 4, 5, 34}, at::kFloat)},
      {rms_norm_op(), rms_norm_inputs({3, 4, 5, 34}, 1, at::kFloat)}};
  for (const auto& [op, inputs] : cases) {
    const auto expected = run(op.fused, op, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const auto& form : laid_out(inputs[i])) {
        auto others = inputs;
        others[i] = form;
        const auto actual = run(op.fused, op, others);
        for (size_t j = 0; j < actual.size(); ++j) {
          EXPECT_TRUE(at::equal(actual[j], expected[j]))
              << op.name << " input " << i << " of strides " << form.strides()
              << ", result " << j;
        }
      }
    }
  }
}

// q as attention reads it: nothing is copied, and nothing has to be before the
// output projection either.
TEST(FusedOps, RotaryLeavesHeadsWhereTheyLie) {
  const auto q = random({2, 5, 3 * 8}, 1).view({2, 5, 3, 8}).transpose(1, 2);
  const auto tables = rotary_inputs({5, 8}, at::kDouble);
  const auto turned = rotary_embedding(q, tables[1], tables[2]);
  EXPECT_EQ(turned.strides(), q.strides());
}

TEST(FusedOps, ExpandedGradients) {
  for (const auto& [op, inputs] : std::vector<std::pair<Op, Tensors>>{
           {swiglu_op(), swiglu_inputs({3, 5, 34}, at::kDouble)},
           {rotary_op(), rotary_inputs({3, 5, 34}, at::kDouble)},
           {rms_norm_op(), rms_norm_inputs({3, 5, 34}, 1, at::kDouble)}}) {
    auto a = inputs[0].clone().requires_grad_();
    auto b = inputs[0].clone().requires_grad_();
    auto rest = inputs;
    rest[0] = a;
    op.fused(rest).sum().backward();
    rest[0] = b;
    op.composed(rest).sum().backward();
    expect_close(a.grad(), b.grad(), 1e-13, op.name);
  }
}

// ---- numbers ----------------------------------------------------------------

TEST(FusedOps, SwigluOfNumbersAtTheEdge) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto gate = at::tensor(
      {-200.0,
       -104.0,
       -103.0,
       -90.0,
       -88.0,
       -50.0,
       -1e-30,
       0.0,
       1e-30,
       50.0,
       88.0,
       90.0,
       200.0,
       1e30,
       -1e30,
       inf,
       -inf,
       std::nan("")},
      at::kFloat);
  const auto up = at::ones_like(gate);
  const auto y = swiglu(gate, up);
  const auto expected = at::silu(gate);
  EXPECT_TRUE(at::allclose(y, expected, 1e-5, 1e-37, /*equal_nan=*/true))
      << y << expected;
  const auto doubles = swiglu(gate.to(at::kDouble), up.to(at::kDouble));
  EXPECT_TRUE(at::allclose(
      doubles, at::silu(gate.to(at::kDouble)), 1e-14, 0, /*equal_nan=*/true));
}

// Within a few units in the last place over all of the numbers that matter.
TEST(FusedOps, SwigluIsPreciseInFloat) {
  const auto gate = at::linspace(-80, 80, 1 << 20, at::kFloat);
  const auto y = swiglu(gate, at::ones_like(gate)).to(at::kDouble);
  const auto expected = at::silu(gate.to(at::kDouble));
  const auto error = ((y - expected) / expected).abs();
  EXPECT_LE(error.nan_to_num(0).max().item<double>(), 4e-7);
}

TEST(FusedOps, BFloat16KeepsNaN) {
  const auto x = at::full({40}, std::nan(""), at::kBFloat16);
  EXPECT_TRUE(swiglu(x, x).isnan().all().item<bool>());
}

TEST(FusedOps, ThreadsAndNeighboursChangeNoBit) {
  const int threads = at::get_num_threads();
  const std::vector<std::pair<Op, Tensors>> cases{
      {swiglu_op(), swiglu_inputs({300, 500}, at::kFloat)},
      {rotary_op(), rotary_inputs({4, 6, 50, 64}, at::kFloat)},
      {rms_norm_op(), rms_norm_inputs({300, 500}, 1, at::kFloat)}};
  for (const auto& [op, inputs] : cases) {
    at::set_num_threads(1);
    const auto expected = run(op.fused, op, inputs);
    for (const int n : {2, 3, 7}) {
      at::set_num_threads(n);
      const auto actual = run(op.fused, op, inputs);
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(at::equal(actual[i], expected[i]))
            << op.name << " on " << n << " threads, result " << i;
      }
    }
    at::set_num_threads(threads);
    // The first dim's last entry alone.
    auto part = inputs;
    part[0] = inputs[0].narrow(0, inputs[0].size(0) - 1, 1);
    if (op.name == "swiglu") {
      part[1] = inputs[1].narrow(0, inputs[1].size(0) - 1, 1);
    }
    EXPECT_TRUE(at::equal(
        op.fused(part), expected[0].narrow(0, expected[0].size(0) - 1, 1)))
        << op.name;
  }
}

// ---- gradients --------------------------------------------------------------

// Central differences of sum(f(x) * weights) along each input's elements.
void check_gradients(
    const Function& function,
    const Tensors& inputs,
    size_t n) {
  Tensors leaves = inputs;
  for (size_t i = 0; i < n; ++i) {
    leaves[i] = inputs[i].clone().requires_grad_();
  }
  const auto output = function(leaves);
  const auto weights = random(output.sizes(), 5);
  (output * weights).sum().backward();
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  for (size_t i = 0; i < n; ++i) {
    auto moved = inputs;
    moved[i] = inputs[i].clone();
    auto flat = moved[i].view(-1);
    for (int64_t e = 0; e < flat.numel(); ++e) {
      const double before = flat[e].item<double>();
      flat[e] = before + kStep;
      const auto above = (function(moved) * weights).sum().item<double>();
      flat[e] = before - kStep;
      const auto below = (function(moved) * weights).sum().item<double>();
      flat[e] = before;
      EXPECT_NEAR(
          leaves[i].grad().view(-1)[e].item<double>(),
          (above - below) / (2 * kStep),
          1e-7)
          << "input " << i << " element " << e;
    }
  }
}

TEST(FusedOps, GradientsAreDifferences) {
  const auto s = swiglu_inputs({3, 11}, at::kDouble);
  check_gradients(swiglu_op().fused, s, 2);
  check_gradients(rotary_op().fused, rotary_inputs({2, 3, 10}, at::kDouble), 1);
  // The tables' too, if somebody asks.
  check_gradients(rotary_op().fused, rotary_inputs({2, 3, 10}, at::kDouble), 3);
  check_gradients(
      rms_norm_op().fused, rms_norm_inputs({4, 9}, 1, at::kDouble), 2);
}

TEST(FusedOps, SecondDerivatives) {
  for (const auto& [op, inputs] : std::vector<std::pair<Op, Tensors>>{
           {swiglu_op(), swiglu_inputs({3, 8}, at::kDouble)},
           {rotary_op(), rotary_inputs({3, 5, 8}, at::kDouble)},
           {rms_norm_op(), rms_norm_inputs({3, 8}, 1, at::kDouble)}}) {
    Tensors results;
    for (const auto& function : {op.fused, op.composed}) {
      auto leaves = inputs;
      leaves[0] = inputs[0].clone().requires_grad_();
      const auto y = function(leaves).pow(3).sum();
      const auto grad =
          torch::autograd::grad({y}, {leaves[0]}, {}, true, true)[0];
      grad.pow(2).sum().backward();
      results.push_back(leaves[0].grad());
    }
    const double scale = results[1].abs().max().item<double>();
    expect_close(results[0], results[1], 1e-12 * scale, op.name);
  }
}

TEST(FusedOps, OnlyWhatNeedsAGradientHasOne) {
  const auto in = swiglu_inputs({3, 8}, at::kDouble);
  const auto up = in[1].clone().requires_grad_();
  swiglu(in[0], up).sum().backward();
  EXPECT_FALSE(in[0].grad().defined());
  expect_close(up.grad(), at::silu(in[0]), 1e-14, "up");
  EXPECT_FALSE(swiglu(in[0], in[1]).requires_grad());
}

// ---- other devices, mistakes ------------------------------------------------

TEST(FusedOps, MetaTensorsHaveSizesOnly) {
  register_rms_norm();
  const auto x =
      at::empty({2, 3, 5, 8}, at::device(at::kMeta)).requires_grad_();
  const auto table = at::empty({5, 8}, at::device(at::kMeta));
  const auto weight = at::empty({8}, at::device(at::kMeta)).requires_grad_();
  const auto y = at::rms_norm(
      rotary_embedding(swiglu(x, x), table, table), {8}, weight, kEps);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
}

TEST(FusedOps, MistakesNameBothSides) {
  const auto x = at::ones({2, 3, 4});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        swiglu(x, at::ones({2, 3, 5}));
      }),
      HasSubstr("[2, 3, 4] Float vs [2, 3, 5] Float"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        rotary_embedding(x, at::ones({9, 4}), at::ones({9, 4}));
      }),
      HasSubstr("x [2, 3, 4] Float vs cos [9, 4] Float"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        const auto odd = at::ones({2, 3, 3});
        rotary_embedding(odd, odd[0], odd[0]);
      }),
      HasSubstr("d even"));
}

// ---- DTensors ---------------------------------------------------------------

struct Cut {
  std::vector<Placement> inputs;
  /// What moving nothing leaves; nullopt: something moves.
  std::optional<Placement> output;
};

void compare_cut(
    const Op& op,
    const Tensors& inputs,
    const std::vector<Cut>& cuts) {
  const auto expected = run(op.composed, op, inputs);
  for (const int n : {1, 2, 3}) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = self.mesh({self.world_size}, {"tp"});
      for (const auto& cut : cuts) {
        Tensors placed;
        std::string text;
        for (size_t i = 0; i < inputs.size(); ++i) {
          text += cut.inputs[i].to_string() + " ";
          auto leaf = inputs[i].clone();
          leaf.set_requires_grad(i < op.differentiable);
          placed.push_back(distributed(leaf, mesh, {cut.inputs[i]}));
        }
        SCOPED_TRACE(op.name + " " + text + "on " + std::to_string(n));
        const auto before = mesh.group(0).flight_recorder().entries().size();
        const auto output = op.fused(placed);
        if (cut.output) {
          EXPECT_EQ(mesh.group(0).flight_recorder().entries().size(), before);
          EXPECT_EQ(spec_of(output).placement(0), *cut.output);
        }
        const auto whole = full_tensor(output);
        expect_close(whole.detach(), expected[0], 1e-12, "output");
        (whole * random(whole.sizes(), 77)).sum().backward();
        for (size_t i = 0; i < op.differentiable; ++i) {
          expect_close(
              full_tensor(placed[i].grad()),
              expected[i + 1],
              1e-12,
              "gradient " + std::to_string(i));
        }
      }
    });
  }
}

TEST(FusedOps, SwigluOfDTensors) {
  compare_cut(
      swiglu_op(),
      swiglu_inputs({2, 5, 7}, at::kDouble),
      {{{kR, kR}, kR},
       {{Shard(0), Shard(0)}, Shard(0)},
       {{Shard(1), Shard(1)}, Shard(1)},
       {{Shard(2), Shard(2)}, Shard(2)},
       {{Shard(0), kR}, std::nullopt},
       {{Shard(1), Shard(2)}, std::nullopt}});
}

TEST(FusedOps, RotaryOfDTensors) {
  compare_cut(
      rotary_op(),
      rotary_inputs({2, 5, 7, 6}, at::kDouble),
      {{{kR, kR, kR}, kR},
       {{Shard(0), kR, kR}, Shard(0)},
       {{Shard(1), kR, kR}, Shard(1)},
       {{Shard(2), Shard(0), Shard(0)}, Shard(2)},
       {{Shard(2), kR, kR}, std::nullopt},
       {{Shard(3), kR, kR}, std::nullopt},
       {{kR, Shard(1), Shard(0)}, std::nullopt}});
}

TEST(FusedOps, RmsNormOfDTensors) {
  compare_cut(
      rms_norm_op(),
      rms_norm_inputs({2, 5, 7}, 1, at::kDouble),
      {{{kR, kR}, kR},
       {{Shard(0), kR}, Shard(0)},
       {{Shard(1), kR}, Shard(1)},
       {{Shard(2), kR}, std::nullopt}});
}

// Both are linear in what a row-parallel layer would leave pending.
TEST(FusedOps, PendingSumsMayWait) {
  const auto mesh = fake_line(0, 2);
  const auto x = random({2, 3, 4}, 1);
  const auto pending = [&](const at::Tensor& part) {
    return from_local(part, mesh, {Partial()});
  };
  const auto whole = distributed(x, mesh, {kR});
  const auto y = swiglu(whole, pending(x));
  EXPECT_EQ(spec_of(y).placement(0), Placement(Partial()));
  const auto table = distributed(x[0], mesh, {kR});
  const auto z = rotary_embedding(pending(x), table, table);
  EXPECT_EQ(spec_of(z).placement(0), Placement(Partial()));
}

} // namespace
} // namespace weft::dtensor
